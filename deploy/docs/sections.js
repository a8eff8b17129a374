// Sphinx's search finds a section only by most of its heading. This finds it by the beginnings of any of its words.
document.addEventListener("DOMContentLoaded", () => {
  if (typeof Search === "undefined") return; // only the page of the search has it
  const inTexts = Search.performTermsSearch;
  Search.performTermsSearch = (terms, excluded) => {
    const { alltitles, titles, docnames, filenames } = Search._index;
    const stemmer = new Stemmer();
    const found = [];
    for (const [heading, places] of Object.entries(alltitles)) {
      const words = splitQuery(heading).map((word) => stemmer.stemWord(word.toLowerCase()));
      if (![...terms].every((term) => words.some((word) => word.startsWith(term)))) continue;
      for (const [file, id] of places) {
        const title = titles[file] === heading ? heading : `${titles[file]} > ${heading}`;
        const score = Scorer.title + (10 * terms.size) / words.length;
        const anchor = id === null ? "" : `#${id}`;
        found.push([docnames[file], title, anchor, null, score, filenames[file], SearchResultKind.title]);
      }
    }
    return [...inTexts(terms, excluded), ...(terms.size ? found : [])];
  };
});
