"""Notifications with a login: what one user sends another appears on all of their devices."""

import itertools
import os
import secrets

from flask import Flask, abort, redirect, render_template, request, session
from throng_client import Throng, ThrongError, User, make_token
from werkzeug.serving import make_server

PASSWORDS = {"ann": "apple", "bob": "banana"}  # in production: hashes in your database

app = Flask(__name__)
app.config.update(SECRET_KEY=secrets.token_hex(), SESSION_COOKIE_SAMESITE="Lax")
throng = Throng(os.environ["THRONG_URL"], os.environ["THRONG_KEY"], publish_timeout=3)
notes = {user: [] for user in PASSWORDS}  # the truth; in production: a table of your database
numbers = itertools.count(1)


@app.get("/")
def page():
    if "user" not in session:
        return render_template("login.html")
    url = os.environ["THRONG_URL"]
    return render_template("page.html", user=session["user"], users=PASSWORDS, throng=url)


@app.post("/login")
def login():
    user, password = request.form["user"], request.form["password"].encode()
    # Somebody who is not known takes as long as somebody who is.
    expected = PASSWORDS.get(user, secrets.token_hex()).encode()
    if not secrets.compare_digest(expected, password):
        return render_template("login.html", error="Wrong name or password."), 403
    session["user"] = user
    return redirect("/")


@app.post("/logout")
def logout():
    session.clear()
    return redirect("/")


def current_user():
    return session.get("user") or abort(401)


@app.get("/push-token")
def push_token():
    """A token for the user's own inbox, and nothing else."""
    return make_token(os.environ["THRONG_TOKEN_SECRET"], user=current_user())


@app.get("/notes")
def own_notes():
    return notes[current_user()]


@app.post("/notes")
def send():
    sender, user = current_user(), request.form["user"]
    if user not in notes:
        abort(404)
    note = {"id": next(numbers), "from": sender, "text": request.form["text"]}
    notes[user].append(note)
    try:
        # It is sent again until Throng has it, always with the same key, so that it arrives once.
        throng.publish(User(user), note)
    except ThrongError as error:
        # It is stored: the page shows it when it is loaded again.
        app.logger.warning("%s was not told of note %s: %s", user, note["id"], error)
    return "", 204


if __name__ == "__main__":
    server = make_server("127.0.0.1", int(os.environ["PORT"]), app, threaded=True)
    print(f"open http://127.0.0.1:{server.port}", flush=True)
    server.serve_forever()
