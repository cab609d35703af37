package throng

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// How old a request may be, or how far ahead its clock.
const webhookTolerance = 5 * time.Minute

// ErrWebhook is wrapped by the errors of Webhook.Verify.
var ErrWebhook = errors.New("throng: the webhook is not genuine")

// A Webhook verifies callouts, which Throng signs by the Standard Webhooks convention.
type Webhook struct {
	keys [][]byte
}

// NewWebhook takes the callout's secret (whsec_…), or several while you change it.
func NewWebhook(secrets ...string) (*Webhook, error) {
	if len(secrets) == 0 {
		return nil, errors.New("throng: give at least one secret")
	}
	webhook := &Webhook{}
	for _, secret := range secrets {
		text := strings.TrimPrefix(strings.TrimSpace(secret), "whsec_")
		key, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			return nil, errors.New("throng: a secret is whsec_ and base64")
		}
		webhook.keys = append(webhook.keys, key)
	}
	return webhook, nil
}

// Verify returns nil if Throng has signed the request. The body is as it was received.
func (w *Webhook) Verify(body []byte, header http.Header) error {
	return w.verifyAt(body, header, time.Now())
}

func (w *Webhook) verifyAt(body []byte, header http.Header, now time.Time) error {
	id, stamp := header.Get("webhook-id"), header.Get("webhook-timestamp")
	signatures := strings.Fields(header.Get("webhook-signature"))
	if id == "" || stamp == "" || len(signatures) == 0 {
		return fmt.Errorf("%w: it has no signature", ErrWebhook)
	}
	seconds, err := strconv.ParseUint(stamp, 10, 40)
	if err != nil {
		return fmt.Errorf("%w: its time is malformed", ErrWebhook)
	}
	age := now.Sub(time.Unix(int64(seconds), 0))
	if age.Abs() > webhookTolerance {
		return fmt.Errorf("%w: it is %v old; is a clock wrong?", ErrWebhook, age.Round(time.Second))
	}
	isGenuine := false
	for _, key := range w.keys {
		mac := hmac.New(sha256.New, key)
		fmt.Fprintf(mac, "%s.%s.", id, stamp)
		mac.Write(body)
		own := "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
		for _, shown := range signatures {
			isGenuine = hmac.Equal([]byte(own), []byte(shown)) || isGenuine
		}
	}
	if !isGenuine {
		return fmt.Errorf("%w: the signature is wrong", ErrWebhook)
	}
	return nil
}
