"""Lists of channels and users. A page ends where its time is up: so any list may have several."""

from .access import bearer


def names(server, path, key=None, **parameters):
    """The names on all pages of a list."""
    field = "user" if path == "/users" else "channel"
    found, after = [], {}
    while after is not None:
        headers = bearer(key) if key else {}
        page = server.http.get(path, params={**parameters, **after}, headers=headers).json()
        found += [entry[field] for entry in page[f"{field}s"]]
        after = {"after": page["after"]} if page["more"] else None
    return sorted(found)
