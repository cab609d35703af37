package throng

import (
	"net/url"
	"strings"
	"unicode"
	"unicode/utf8"
)

// The longest name, as on the server.
const nameBytesMax = 255

// check refuses a name that no channel and no user can have, before anything is sent. The rules are
// the server's.
func (t Target) check() *Error {
	kind, name := t.parts()
	refuse := func(code, reason string) *Error {
		return &Error{Code: code, Message: "the " + kind + " name " + reason}
	}
	switch {
	case name == "":
		return refuse("bad_name", "is empty")
	case !utf8.ValidString(name):
		return refuse("bad_utf8", "is not UTF-8")
	case len(name) > nameBytesMax:
		return refuse("bad_name", "is longer than 255 bytes")
	case strings.ContainsFunc(name, unicode.IsControl):
		return refuse("bad_name", "contains a control character")
	}
	for _, part := range strings.Split(name, "/") {
		if part == "" || part == "." || part == ".." {
			return refuse("bad_name", "has a part between slashes that is empty, `.` or `..`")
		}
	}
	return nil
}

// checkUse refuses a name that can be neither followed nor published to. History and presence of
// channels of former versions can still be read by such a name.
func (t Target) checkUse() *Error {
	if err := t.check(); err != nil {
		return err
	}
	kind, name := t.parts()
	if strings.Contains(name, "*") {
		message := "the " + kind + " name contains `*`: there are no patterns, so name each by its whole name"
		return &Error{Code: "bad_name", Message: message}
	}
	return nil
}

// path is that of a request about a channel: /channels/NAME/what, or /what?channel=NAME for names
// that a path can only have encoded. Some proxies refuse or decode these.
func (t Target) path(what string, query url.Values) string {
	kind, name := t.parts()
	path := "/" + kind + "s/" + name
	if url.PathEscape(name) != name {
		path = ""
		named := url.Values{kind: {name}}
		for key, values := range query {
			named[key] = values
		}
		query = named
	}
	if what != "" {
		path += "/" + what
	} else if path == "" {
		path = "/publish"
	}
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	return path
}
