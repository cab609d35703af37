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
	// disconnected, no_token, token_failed or http_… (a status without an error code of the server).
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
	// isOwn: the server has ended it on purpose, so that the transport is not to blame.
	isOwn bool
	// isStale: the token does not hold any more, and a newer one can be used at once.
	isStale bool
	// isLate: it did not open in time.
	isLate bool
	// isSilent: the server has sent nothing for too long.
	isSilent bool
	// err is set if no transport will work: the subscription ends with it.
	err *Error
}

func (l *loss) Error() string { return l.message }

const noHint time.Duration = -1

func lost(message string) *loss { return &loss{message: message, hint: noHint} }

func silent() *loss {
	return &loss{message: errSilent.Error(), hint: noHint, isSilent: true}
}

func late(message string) *loss {
	return &loss{message: message, hint: noHint, isUnusable: true, isLate: true}
}

func unusable(message string) *loss {
	return &loss{message: message, hint: noHint, isUnusable: true}
}
