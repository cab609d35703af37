"""Certificates for tests, made by openssl, and clients that trust them."""

import ssl
import subprocess


def _openssl(*arguments, directory):
    done = subprocess.run(
        ["openssl", *map(str, arguments)],
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def make_certificate(directory, name, *names, days=30, rsa=False, common_name=None):
    """Writes NAME.pem and NAME.key, self-signed, for these DNS names and 127.0.0.1."""
    alternatives = ",".join([*(f"DNS:{one}" for one in names), "IP:127.0.0.1"])
    kind = ["rsa:2048"] if rsa else ["ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    _openssl(
        *("req", "-x509", "-nodes", "-newkey", *kind),
        *("-keyout", f"{name}.key", "-out", f"{name}.pem", "-days", days),
        *("-subj", f"/CN={common_name or (names or [name])[0]}"),
        *("-addext", f"subjectAltName={alternatives}"),
        directory=directory,
    )
    directory.joinpath(f"{name}.key").chmod(0o600)
    return directory / f"{name}.pem", directory / f"{name}.key"


class Authority:
    """An authority that signs certificates of clients and revokes them."""

    def __init__(self, directory, name="ca"):
        self.directory, self.name = directory, name
        self.certificate = directory / f"{name}.pem"
        _openssl(
            *("req", "-x509", "-nodes", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-keyout", f"{name}.key", "-out", f"{name}.pem", "-days", "30"),
            *("-subj", f"/CN={name}", "-addext", "keyUsage=critical,keyCertSign,cRLSign"),
            directory=directory,
        )
        directory.joinpath(f"{name}.index").write_text("")
        directory.joinpath(f"{name}.number").write_text("01\n")
        directory.joinpath(f"{name}.conf").write_text(
            f"[ca]\ndefault_ca = own\n[own]\ndatabase = {name}.index\n"
            f"certificate = {name}.pem\nprivate_key = {name}.key\n"
            "default_md = sha256\ndefault_crl_days = 30\n"
            f"crlnumber = {name}.number\ncrl_extensions = crl\n"
            "[crl]\nauthorityKeyIdentifier = keyid\n"
        )

    def sign(self, name, *alternatives, usage="clientAuth"):
        """Writes NAME.pem and NAME.key of a client, or a server, with this common name."""
        _openssl(
            *("req", "-nodes", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}"),
            directory=self.directory,
        )
        extensions = self.directory / f"{name}.ext"
        extensions.write_text(
            f"basicConstraints=CA:FALSE\nextendedKeyUsage={usage}\n"
            "authorityKeyIdentifier=keyid\n"
            + (f"subjectAltName={','.join(alternatives)}\n" if alternatives else "")
        )
        _openssl(
            *("x509", "-req", "-in", f"{name}.csr", "-CA", f"{self.name}.pem"),
            *("-CAkey", f"{self.name}.key", "-CAcreateserial", "-days", "30"),
            *("-extfile", extensions, "-out", f"{name}.pem"),
            directory=self.directory,
        )
        return self.directory / f"{name}.pem", self.directory / f"{name}.key"

    def revoke(self, *certificates):
        """Revokes certificates, and writes the list of all that are revoked."""
        config = ["-config", f"{self.name}.conf"]
        for certificate in certificates:
            _openssl("ca", *config, "-revoke", certificate, directory=self.directory)
        path = self.directory / f"{self.name}.crl"
        _openssl("ca", *config, "-gencrl", "-out", path, directory=self.directory)
        return path


def trusting(certificate, own=None):
    """An SSL context that trusts only this certificate, and shows its `own`, if any."""
    context = ssl.create_default_context(cafile=str(certificate))
    if own is not None:
        context.load_cert_chain(*map(str, own))
    return context
