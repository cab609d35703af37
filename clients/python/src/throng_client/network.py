"""How the client reaches its server: through which proxy, and which certificates it trusts.

One rule for HTTP and WebSockets, read when the client is made. The libraries read no environment of
their own, so that they cannot differ, and an error names the variable.
"""

from __future__ import annotations

import importlib.util
import ipaddress
import os
import ssl
from dataclasses import dataclass
from urllib.parse import urlsplit

import certifi

from .options import FROM_ENVIRONMENT, Options

_SCHEMES = ("http", "https", "socks5", "socks5h")
_DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Network:
    """The way to a server."""

    proxy: str | None
    ssl: ssl.SSLContext | None
    """None for a server without TLS."""


def network_of(url: str, options: Options) -> Network:
    """The way to the server of a URL. Raises `ValueError` for what cannot be used."""
    is_secure = url.startswith("https:")
    if options.proxy == FROM_ENVIRONMENT:
        proxy = _proxy_of_environment(url)
    else:
        proxy = options.proxy and _checked(options.proxy, "the option proxy")
    return Network(proxy, (options.ssl_context or _trusting()) if is_secure else None)


def _variable(*names: str) -> tuple[str, str] | None:
    """The first variable that is set, and its value. Its name in lower case comes first."""
    for name in names:
        for spelt in (name, name.upper()):
            value = os.environ.get(spelt, "").strip()
            # A web server that runs a CGI program sets HTTP_PROXY from a header of the request.
            if value and not (spelt == "HTTP_PROXY" and "REQUEST_METHOD" in os.environ):
                return spelt, value
    return None


def _proxy_of_environment(url: str) -> str | None:
    parts = urlsplit(url)
    found = _variable(f"{parts.scheme}_proxy", "all_proxy")
    host = (parts.hostname or "").rstrip(".")
    if found is None or _is_loopback(host):
        return None
    name, proxy = found
    exceptions = _variable("no_proxy")
    port = parts.port or _DEFAULT_PORTS[parts.scheme]
    if exceptions is not None and _is_excepted(host, port, exceptions[1]):
        return None
    return _checked(proxy, f"the variable {name}")


def _checked(proxy: str, source: str) -> str:
    """The URL of a proxy. Raises `ValueError`, which says where it is from."""
    url = proxy if "://" in proxy else f"http://{proxy}"
    advice = "; proxy=None connects without a proxy"
    try:
        parts = urlsplit(url)
        is_url = bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_url = False
    if not is_url:
        raise ValueError(f"{source} is no URL of a proxy: {proxy!r}{advice}")
    if parts.scheme not in _SCHEMES:
        known = ", ".join(_SCHEMES)
        raise ValueError(
            f"{source} has a kind of proxy that is not one of {known}: {proxy!r}{advice}"
        )
    if parts.scheme.startswith("socks"):
        needed = {"socksio": "httpx[socks]", "python_socks": "python-socks[asyncio]"}
        missing = [each for name, each in needed.items() if not importlib.util.find_spec(name)]
        if missing:
            wanted = " ".join(f"'{each}'" for each in missing)
            raise ValueError(
                f"{source} is a SOCKS proxy, for which `pip install {wanted}` is "
                f"needed: {proxy!r}{advice}"
            )
    return url


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None


def _is_loopback(host: str) -> bool:
    address = _address(host)
    is_named = host == "localhost" or host.endswith(".localhost")
    return is_named if address is None else address.is_loopback


def _is_excepted(host: str, port: int, exceptions: str) -> bool:
    """Whether `NO_PROXY` has the host: by name, by suffix, as an address or in a network. What
    is none of these names no host."""
    address = _address(host)
    for each in exceptions.replace(",", " ").split():
        entry = each.lower()
        if entry == "*":
            return True
        if "/" in entry:
            if address is not None and address in _network(entry):
                return True
            continue
        name, has_port = _without_port(entry)
        if has_port is not None and has_port != port:
            continue
        listed = _address(name)
        if listed is not None:
            if listed == address:
                return True
            continue
        suffix = name.lstrip("*").lstrip(".").rstrip(".")
        if suffix and (host == suffix or host.endswith(f".{suffix}")):
            return True
    return False


def _network(text: str) -> list[object] | ipaddress.IPv4Network | ipaddress.IPv6Network:
    try:
        return ipaddress.ip_network(text.replace("[", "").replace("]", ""), strict=False)
    except ValueError:
        return []


def _without_port(entry: str) -> tuple[str, int | None]:
    """The host of an entry, and its port if it has one."""
    if _address(entry) is not None:
        return entry, None
    name, colon, port = entry.rpartition(":")
    return (name, int(port)) if colon and port.isascii() and port.isdigit() else (entry, None)


def _trusting() -> ssl.SSLContext:
    """The certificates of `SSL_CERT_FILE` or `SSL_CERT_DIR`; without them those of the package
    `certifi` and of the system."""
    for name, exists in (("SSL_CERT_FILE", os.path.isfile), ("SSL_CERT_DIR", os.path.isdir)):
        path = os.environ.get(name)
        if not path:
            continue
        if not exists(path):
            raise ValueError(f"the variable {name} names {path!r}, which does not exist")
        try:
            if name == "SSL_CERT_FILE":
                return ssl.create_default_context(cafile=path)
            return ssl.create_default_context(capath=path)
        except OSError as error:
            raise ValueError(
                f"the variable {name} names {path!r}, which has no certificates: {error}"
            ) from error
    context = ssl.create_default_context()
    context.load_verify_locations(certifi.where())
    return context
