"""Certificates for tests: a CA, a CA below it, certificates of a server and a client, made by the command openssl."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

KEYS = {
    "ec": ("ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
    "rsa2048": ("rsa:2048",),
    "rsa4096": ("rsa:4096",),
}


@dataclass(frozen=True)
class Signed:
    """A certificate in PEM, and its key."""

    certificate: Path
    key: Path


def make(folder: Path, name: str, by: Signed | None = None, *, kind: str = "ec", ca: bool = False) -> Signed:
    """Makes a certificate with this name, signed by another; without `by`, signed by itself. kind: a name of KEYS."""
    made = Signed(folder / f"{name}.pem", folder / f"{name}.key")
    uses = "critical,CA:true" if ca else "critical,CA:false"
    words = ["openssl", "req", "-x509", "-newkey", *KEYS[kind], "-nodes", "-days", "2", "-subj", f"/CN={name}"]
    words += ["-keyout", str(made.key), "-out", str(made.certificate), "-addext", f"basicConstraints={uses}"]
    if not ca:
        words += ["-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
    if by is not None:
        words += ["-CA", str(by.certificate), "-CAkey", str(by.key)]
    subprocess.run(words, check=True, capture_output=True)
    return made


class Authority:
    """A CA with a second CA below. The second CA signs certificates."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.root = make(folder, f"{name} root", ca=True)
        self.below = make(folder, f"{name} below", self.root, ca=True)

    @property
    def trusted(self) -> Path:
        """The file of the CA for peers to trust."""
        return self.root.certificate

    def sign(self, name: str, kind: str = "ec") -> Signed:
        """Makes a certificate; its file has the chain up to the CA."""
        made = make(self.folder, name, self.below, kind=kind)
        with made.certificate.open("a") as file:
            file.write(self.below.certificate.read_text())
        return made
