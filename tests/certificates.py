"""An authority of a test's own, and certificates that it signed, as PEM files."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Authority:
    """Signs certificates. ``ca``: the file that clients trust."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "relay test authority")])
        signed = self._signed(self._name, self._key, x509.BasicConstraints(ca=True, path_length=0))
        self.ca = folder / "ca.pem"
        self.ca.write_bytes(signed.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str, address: str = "127.0.0.1") -> Path:
        """Return a file with a key, as PKCS#8, and its certificate for ``address``."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))])
        pem = serialization.Encoding.PEM
        private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        path = self.folder / f"{name}.pem"
        path.write_bytes(private + self._signed(subject, key, names).public_bytes(pem))
        return path

    def _signed(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, extension: x509.ExtensionType
    ) -> x509.Certificate:
        now = datetime.now(UTC)
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(self._name)
        builder = builder.public_key(key.public_key()).serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=2))
        return builder.add_extension(extension, critical=False).sign(self._key, hashes.SHA256())
