package throng

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"
)

const (
	webhookSecret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	otherSecret   = "whsec_OfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	webhookBody   = `{"type":"notify"}`
)

func signedHeader(changes ...string) http.Header {
	header := http.Header{}
	header.Set("Webhook-Id", "id1")
	header.Set("Webhook-Timestamp", "1763756766")
	// Made by the Python library standardwebhooks.
	header.Set("Webhook-Signature", "v1,APDVsvvUpShNwnn/TA8l96DM7Z9uhDTNy1bkOEAbMA8=")
	for _, change := range changes {
		name, value, _ := strings.Cut(change, "=")
		header.Set(name, value)
	}
	return header
}

func TestAWebhookThatAnotherLibrarySigned(t *testing.T) {
	at := time.Unix(1763756766, 0)
	webhook, err := NewWebhook(otherSecret, webhookSecret)
	if err != nil {
		t.Fatal(err)
	}
	both := signedHeader("Webhook-Signature=v1,AAAA v1,APDVsvvUpShNwnn/TA8l96DM7Z9uhDTNy1bkOEAbMA8=")
	for _, header := range []http.Header{signedHeader(), both} {
		if err := webhook.verifyAt([]byte(webhookBody), header, at.Add(4*time.Minute)); err != nil {
			t.Error(err)
		}
	}
	for _, change := range []string{
		"Webhook-Signature=v1,AAAA", "Webhook-Signature=", "Webhook-Id=id2",
		"Webhook-Timestamp=x", "Webhook-Timestamp=1763756767", "Webhook-Timestamp=-1",
	} {
		if err := webhook.verifyAt([]byte(webhookBody), signedHeader(change), at); !errors.Is(err, ErrWebhook) {
			t.Errorf("%s: got %v", change, err)
		}
	}
	for _, offset := range []time.Duration{-301 * time.Second, 301 * time.Second} {
		if webhook.verifyAt([]byte(webhookBody), signedHeader(), at.Add(offset)) == nil {
			t.Errorf("accepted %v off", offset)
		}
	}
	if webhook.verifyAt([]byte(webhookBody+" "), signedHeader(), at) == nil {
		t.Error("accepted another body")
	}
	if _, err := NewWebhook("whsec_é"); err == nil {
		t.Error("accepted a malformed secret")
	}
}
