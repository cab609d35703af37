package throng

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"
)

// Properties of a channel, which do not change once it is created.
type Properties struct {
	// ContentType is the content type of all messages; empty if they may have any.
	ContentType string
	// TTL is how long the channel stays after its creation and each message: 1 s to a year, in whole
	// seconds. 0: it does not go by itself.
	TTL time.Duration
	// ExpiresAt is until when it stays, whatever comes: within a year. Zero if there is no such time.
	ExpiresAt time.Time
}

// A Creation says that somebody has created a channel, with these properties.
type Creation struct {
	Channel string
	Created time.Time
	Properties
	// IDs are those of the messages with which this call of Create has created it.
	IDs []string
}

// Create creates a channel, and publishes its first messages in the same step: all or none. They
// have no Target, and no Key. This needs the right "create". It may be repeated; with other properties
// the error is "already_created". A channel that was created before gets no messages: IDs is empty then.
func (c *Client) Create(
	ctx context.Context, channel string, properties Properties, first ...Draft,
) (Creation, error) {
	fields := map[string]any{}
	if properties.ContentType != "" {
		fields["content_type"] = properties.ContentType
	}
	if properties.TTL != 0 {
		fields["ttl"] = wholeSeconds(properties.TTL)
	}
	if !properties.ExpiresAt.IsZero() {
		fields["expires_at"] = properties.ExpiresAt.UnixMilli()
	}
	var messages []map[string]any
	for _, draft := range first {
		if draft.Target != (Target{}) || draft.Key != "" {
			return Creation{}, errors.New("throng: a first message has neither a Target nor a Key")
		}
		if err := draft.prepare(); err != nil {
			return Creation{}, err
		}
		messages = append(messages, draft.fields())
	}
	if len(messages) > 0 {
		fields["messages"] = messages
	}
	body, err := json.Marshal(fields)
	if err != nil {
		return Creation{}, err
	}
	header := map[string]string{"Content-Type": "application/json"}
	return c.creation(ctx, channel, request{http.MethodPut, "", header, body})
}

// Creation returns the creation of a channel; the error is "not_created" if nobody has created it.
func (c *Client) Creation(ctx context.Context, channel string) (Creation, error) {
	return c.creation(ctx, channel, request{method: http.MethodGet})
}

func (c *Client) creation(ctx context.Context, channel string, r request) (Creation, error) {
	target := Channel(channel)
	r.path = target.path("creation", nil)
	var found struct {
		Channel     string   `json:"channel"`
		Created     int64    `json:"created"`
		ContentType string   `json:"content_type"`
		TTL         int64    `json:"ttl"`
		ExpiresAt   int64    `json:"expires_at"`
		IDs         []string `json:"ids"`
	}
	if err := c.ask(ctx, target, r, func(body []byte) error { return json.Unmarshal(body, &found) }); err != nil {
		return Creation{}, err
	}
	properties := Properties{ContentType: found.ContentType, TTL: time.Duration(found.TTL) * time.Second}
	if found.ExpiresAt != 0 {
		properties.ExpiresAt = time.UnixMilli(found.ExpiresAt)
	}
	return Creation{found.Channel, time.UnixMilli(found.Created), properties, found.IDs}, nil
}
