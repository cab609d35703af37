package throng

import (
	"fmt"
	"time"
)

// An Outcome says what became of a publication that failed.
type Outcome string

const (
	// Unpublished means that the server does not have the message.
	Unpublished Outcome = "unpublished"
	// Unknown means that an attempt got no response: the message may have been published or may
	// still be.
	Unknown Outcome = "unknown"
)

// An Error is a request, a publication or a subscription that failed.
type Error struct {
	// Code is the server's error code, or one of the client's own: timeout, unreachable,
	// disconnected, no_token, token_failed, http_… or close_… (a status or close code without an
	// error code of the server).
	Code string
	// Message is one sentence.
	Message string
	// Status is the HTTP status if the error is from a response, and 0 otherwise.
	Status int
	// Outcome is set for publications.
	Outcome Outcome
	// Key is the idempotency key of a publication, to try again without publishing twice.
	Key string
	// Cause is what failed, if it was not the server that refused.
	Cause error
}

func (e *Error) Error() string { return fmt.Sprintf("throng: %s (%s)", e.Message, e.Code) }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Cause }

// A loss is why a link ended, and what to do next.
type loss struct {
	message string
	// hint is the server's time to retry; negative if it named none.
	hint time.Duration
	// isUnusable: the transport does not work here, so a retry will not help.
	isUnusable bool
	// isAnswer: the transport works; the server has refused the token, or there is none for now.
	isAnswer bool
	// err is set if no transport will work: the subscription ends with it.
	err *Error
}

func (l *loss) Error() string { return l.message }

const noHint time.Duration = -1

func lost(message string) *loss { return &loss{message: message, hint: noHint} }

func unusable(message string) *loss {
	return &loss{message: message, hint: noHint, isUnusable: true}
}

// Close codes after which the server would refuse the client again, if it has accepted it.
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

// lossOfClose is the loss of a link that the server has closed.
func lossOfClose(code int, message string, hint time.Duration, isOpen, canRenew, hasToken bool) *loss {
	// Without a token, what has ended was allowed to any client for a time.
	isRenewable := isStaleToken(code) && (canRenew || (code == 4002 && !hasToken))
	result := &loss{message: message, hint: hint, isAnswer: isRenewable || code >= disconnected}
	name, isOfToken := tokenCodes[code]
	switch {
	case isOfToken && !isRenewable:
		result.err = &Error{Code: name, Message: message}
	case isOfToken:
	case code >= disconnectedForGood:
		result.err = &Error{Code: "disconnected", Message: message}
	case isOpen && finalCodes[code]:
		result.err = &Error{Code: fmt.Sprintf("close_%d", code), Message: message}
	}
	return result
}
