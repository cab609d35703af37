"""TLS by OpenSSL, through Python: certificates, and a proxy that ends TLS in front of a server."""

import contextlib
import datetime
import ipaddress
import socket
import ssl
import threading

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

READ_BYTES = 64 * 1024


class Authority:
    """Signs certificates. `file` is its own, which clients have to trust."""

    def __init__(self, directory):
        self.directory = directory
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = _name(f"test authority {x509.random_serial_number()}")
        basic = x509.BasicConstraints(ca=True, path_length=None)
        self.file = directory / "authority.pem"
        certificate = self._sign(self.name, self.key, [basic])
        self.file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, *hosts, age=datetime.timedelta()):
        """A certificate for host names and addresses: its file, which has the key, too.

        It is valid for a day, less its age.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        alternative = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
        certificate = self._sign(_name(hosts[0]), key, [alternative], age)
        file = self.directory / f"{hosts[0]}.pem"
        encoding = serialization.Encoding.PEM
        private = key.private_bytes(
            encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        file.write_bytes(private + certificate.public_bytes(encoding))
        return file

    def context(self, *hosts):
        """What a server with such a certificate needs."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.issue(*hosts))
        return context

    def _sign(self, subject, key, extensions, age=datetime.timedelta()):
        now = datetime.datetime.now(datetime.timezone.utc) - age
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
        )
        for extension in extensions:
            builder = builder.add_extension(extension, critical=False)
        return builder.sign(self.key, hashes.SHA256())


def _name(common):
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _general_name(host):
    with contextlib.suppress(ValueError):
        return x509.IPAddress(ipaddress.ip_address(host))
    return x509.DNSName(host)


class TlsProxy:
    """Ends TLS, and passes bytes to and from a server; `treat` may do something else instead."""

    def __init__(self, context, port=None, treat=None):
        self.context, self.backend = context, port
        self.treat = treat or self._pass
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def stop(self):
        # Closing alone does not wake a thread that waits in accept().
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()

    def _accept(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection):
        with contextlib.suppress(OSError), connection:
            with self.context.wrap_socket(
                connection, server_side=True, suppress_ragged_eofs=True
            ) as secured:
                self.treat(secured)

    def _pass(self, secured):
        with socket.create_connection(("127.0.0.1", self.backend)) as plain:
            copy = threading.Thread(target=_copy, args=(plain, secured), daemon=True)
            copy.start()
            _copy(secured, plain)
            copy.join()


def _copy(source, target):
    with contextlib.suppress(OSError):
        while data := source.recv(READ_BYTES):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)
