"""Sphinx's settings. ``site.py`` puts the pages into a folder for Sphinx; this file stays here."""

from relay import __version__

project = "relay"
release = __version__
extensions = ["myst_parser"]
root_doc = "index"
html_title = "relay"
html_theme = "furo"  # loads nothing from elsewhere
html_copy_source = False
html_static_path = ["sections.js", "site.css"]
html_js_files = ["sections.js"]
html_css_files = ["site.css"]
html_show_copyright = False
highlight_language = "none"  # of blocks without a language: commands, and what they print
myst_heading_anchors = 6  # links to headings are written as on GitHub
nitpicky = True
