package throng

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"
)

// tokens is the token that a client shows, and how it gets a newer one. The function runs once at a
// time. A token that the server has refused, or that has expired, is not sent again, unless the
// function returns it again.
type tokens struct {
	get     func(context.Context) (string, error)
	timeout time.Duration
	// turn is held by the caller of get.
	turn    chan struct{}
	mu      sync.Mutex
	current string
	// expiresAt is the zero time if that is unknown.
	expiresAt time.Time
}

func newTokens(token string, get func(context.Context) (string, error), timeout time.Duration) *tokens {
	return &tokens{current: token, get: get, timeout: timeout, turn: make(chan struct{}, 1)}
}

func (t *tokens) canRenew() bool { return t.get != nil }

// now is the token to send, and whether that can be done without load.
func (t *tokens) now() (token string, isReady bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.get != nil && !t.expiresAt.IsZero() && !time.Now().Before(t.expiresAt) {
		t.current, t.expiresAt = "", time.Time{}
	}
	return t.current, t.current != "" || t.get == nil
}

func (t *tokens) refuse(token string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.get != nil && t.current == token {
		t.current = ""
	}
}

// load is a newer token than old.
func (t *tokens) load(ctx context.Context, old string) (string, error) {
	select {
	case t.turn <- struct{}{}:
		defer func() { <-t.turn }()
	case <-ctx.Done():
		return "", ctx.Err()
	}
	if token, _ := t.now(); token != "" && token != old {
		return token, nil
	}
	limited, cancel := context.WithTimeout(ctx, t.timeout)
	defer cancel()
	token, err := t.get(limited)
	if err != nil {
		message := fmt.Sprintf("the function for tokens failed: %v", err)
		return "", &Error{Code: "token_failed", Message: message, Cause: err}
	}
	if token == "" {
		return "", &Error{Code: "no_token", Message: "the function for tokens returned none"}
	}
	if flaw := flawOf(token); flaw != "" {
		return "", &Error{Code: "token_failed", Message: "the function for tokens returned text that " + flaw}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.current, t.expiresAt = token, expiryOf(token)
	return token, nil
}

// flawOf says why a text is no token; it is empty for one that may be.
func flawOf(token string) string {
	switch start := strings.TrimSpace(token); {
	case strings.HasPrefix(start, "<"):
		return "is a page of HTML, such as a login: " + (&answer{body: []byte(start)}).excerpt()
	case strings.HasPrefix(start, "{"), strings.HasPrefix(start, "["), strings.HasPrefix(start, `"`):
		// It may hold a token, which belongs into no log.
		return "is JSON, not the token in it"
	case !isHeaderText(token) || strings.Contains(token, " "):
		return "has a space, a line break or another character that no token has"
	}
	return ""
}

// expiryOf is when a JWT expires, or the zero time: if it does not say so, or if it has expired
// already by this machine's clock, which must be wrong.
func expiryOf(token string) time.Time {
	segments := strings.Split(token, ".")
	if len(segments) != 3 {
		return time.Time{}
	}
	text, err := base64.RawURLEncoding.DecodeString(segments[1])
	var claims struct {
		Exp float64 `json:"exp"`
	}
	if err != nil || json.Unmarshal(text, &claims) != nil || claims.Exp <= 0 || claims.Exp > 1e11 {
		return time.Time{}
	}
	at := time.UnixMilli(int64(claims.Exp * 1000))
	if !at.After(time.Now()) {
		return time.Time{}
	}
	return at
}
