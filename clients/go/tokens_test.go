//go:build go1.25

package throng

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestAnExpiredTokenIsReplacedBeforeItIsSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		made := 0
		held := newTokens("", func(context.Context) (string, error) {
			made++
			return MakeToken([]byte(strings.Repeat("s", 32)), Grant{User: "ann", ExpiresIn: time.Minute})
		}, time.Second)
		for _, each := range []struct {
			pause time.Duration
			made  int
		}{{0, 1}, {59 * time.Second, 1}, {2 * time.Second, 2}, {time.Hour, 3}} {
			time.Sleep(each.pause)
			if _, isReady := held.now(); !isReady {
				if _, err := held.load(context.Background(), ""); err != nil {
					t.Fatal(err)
				}
			}
			if made != each.made {
				t.Errorf("after another %v: %d tokens made, want %d", each.pause, made, each.made)
			}
		}
	})
}

// The clock of this machine may be ahead: a token is not thrown away before the server has seen it.
func TestATokenThatSeemsExpiredWhenItComesIsSent(t *testing.T) {
	old := Grant{ExpiresIn: time.Minute, Claims: map[string]any{"exp": 1000}}
	held := newTokens("", func(context.Context) (string, error) {
		return MakeToken([]byte(strings.Repeat("s", 32)), old)
	}, time.Second)
	token, err := held.load(context.Background(), "")
	if now, isReady := held.now(); err != nil || now != token || !isReady {
		t.Error(now, isReady, err)
	}
}

func TestWhatIsNoTokenIsNamed(t *testing.T) {
	for text, want := range map[string]string{
		"\n<!DOCTYPE html><title>Log in</title>": `is a page of HTML, such as a login: "Log in"`,
		`{"token":"eyJ"}`:                        "is JSON, not the token in it",
		`"eyJ"`:                                  "is JSON, not the token in it",
		"eyJ\n":                                  "has a space, a line break",
	} {
		get := func(context.Context) (string, error) { return text, nil }
		_, err := newTokens("", get, time.Second).load(context.Background(), "")
		var failed *Error
		if !errors.As(err, &failed) || failed.Code != "token_failed" || !strings.Contains(failed.Message, want) {
			t.Errorf("%q: %v", text, err)
		}
	}
}
