package throng

import (
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// The statuses of the server's error codes. An error body with another status is not the server's.
var statusOf = map[string]int{
	"bad_request": 400, "bad_length": 400, "bad_name": 400, "bad_id": 400, "bad_parameter": 400,
	"too_many_channels": 400, "bad_json": 400, "bad_utf8": 400, "bad_handshake": 400,
	"bad_compression": 400,
	"unauthorized":    401, "invalid_token": 401, "token_expired": 401, "token_revoked": 401,
	"origin_refused": 403, "host_refused": 403, "forwarded_refused": 403, "forbidden": 403,
	"not_found": 404, "not_created": 404, "method_not_allowed": 405, "too_slow": 408,
	"already_subscribed": 409, "not_subscribed": 409, "closed": 409, "already_created": 409,
	"conflict":  412,
	"too_large": 413, "uri_too_long": 414, "other_type": 415, "upgrade_required": 426,
	"too_many_requests": 429, "head_too_large": 431,
	"not_implemented": 501, "full": 503, "busy": 503, "unavailable": 503, "draining": 503,
	"outcome_unknown": 504, "bad_version": 505, "not_stored": 507,
}

// Characters of a stranger's answer that an error repeats.
const excerptMax = 80

var tags = regexp.MustCompile(`(?s)<(style|script).*?</(style|script)>|<[^>]*>`)

type answer struct {
	status int
	header http.Header
	body   []byte
}

func (a *answer) isOK() bool { return a.status >= 200 && a.status < 300 }

// refusal is the error that a response reports, and whether the server itself does: only that says
// what becomes of the same request later. The error of a proxy passes, or another transport helps.
func (a *answer) refusal() (err *Error, isOwn bool) {
	var members map[string]json.RawMessage
	var code, message string
	isOwn = json.Unmarshal(a.body, &members) == nil && len(members) == 2 &&
		json.Unmarshal(members["error"], &code) == nil &&
		json.Unmarshal(members["message"], &message) == nil && statusOf[code] == a.status
	if isOwn {
		return &Error{Code: code, Message: message, Status: a.status}, true
	}
	message = fmt.Sprintf("a proxy or another server answered %d: %s", a.status, a.excerpt())
	if a.status == http.StatusNotFound {
		message += "; is this the URL of a Throng server?"
	}
	return &Error{Code: fmt.Sprintf("http_%d", a.status), Message: message, Status: a.status}, false
}

// excerpt is the beginning of what the body says, without tags.
func (a *answer) excerpt() string {
	text := strings.ToValidUTF8(tags.ReplaceAllString(string(a.body[:min(len(a.body), 4096)]), " "), "")
	text = strings.Join(strings.Fields(text), " ")
	if runes := []rune(text); len(runes) > excerptMax {
		text = string(runes[:excerptMax]) + "…"
	}
	if target := a.header.Get("Location"); target != "" {
		return "go to " + target
	}
	if text == "" {
		return http.StatusText(a.status)
	}
	return strconv.Quote(text)
}

// retryAfter is the time to retry that a response names, spread over a second: many clients get the
// same. It is noHint without one.
func (a *answer) retryAfter(random func() float64) time.Duration {
	seconds, err := strconv.ParseUint(a.header.Get("Retry-After"), 10, 32)
	if err != nil {
		return noHint
	}
	return bounded(time.Duration((float64(seconds) + random()) * float64(time.Second)))
}

// isTemporary says whether the same request may succeed later.
func isTemporary(status int) bool {
	if status == http.StatusNotImplemented || status == http.StatusHTTPVersionNotSupported {
		return false
	}
	return status == http.StatusRequestTimeout || status == http.StatusTooManyRequests || status >= 500
}

// Codes after which the server would refuse the same client again, if the reason of the close says
// so: it begins with an error code. Without that, a proxy may have closed.
var finalCodes = map[int]bool{1002: true, 1003: true, 1007: true, 1008: true}

var tokenCodes = map[int]string{
	4002: "token_expired",
	4003: "unauthorized",
	4004: "token_revoked",
	4005: "forbidden",
}

// Codes of the application; from the second on, clients do not come back.
const (
	disconnected        = 4100
	disconnectedForGood = 4500
)

func isStaleToken(code int) bool { return code == 4002 || code == 4003 }

// isOwnClose says whether the server has closed on purpose, so that the transport is not to blame.
func isOwnClose(code int) bool {
	return code == 1012 || code == 1013 || code == 3008 || (code >= 4000 && code < 5000)
}

// A closing is a close code with its reason, or the last event of a stream.
type closing struct {
	code   int
	reason string
	hint   time.Duration
	// isThrong: the peer has shown that it is a Throng server.
	isThrong bool
}

// loss is the loss of a link that has been closed.
func (c closing) loss(message string, canRenew, hasToken bool) *loss {
	result := &loss{message: message, hint: c.hint}
	if !c.isThrong {
		return result
	}
	result.isOwn = isOwnClose(c.code)
	// Without a token, what has ended was allowed to any client for a time.
	isRenewable := isStaleToken(c.code) && (canRenew || (c.code == 4002 && !hasToken))
	result.isAnswer = isRenewable || c.code >= disconnected
	result.isStale = isRenewable
	name, isOfToken := tokenCodes[c.code]
	code, _, hasCode := strings.Cut(c.reason, ":")
	switch {
	case isOfToken && !isRenewable:
		result.err = &Error{Code: name, Message: message}
	case isOfToken:
	case c.code >= disconnectedForGood:
		result.err = &Error{Code: "disconnected", Message: message}
	case finalCodes[c.code] && hasCode && statusOf[code] != 0:
		result.err = &Error{Code: code, Message: message}
	}
	return result
}
