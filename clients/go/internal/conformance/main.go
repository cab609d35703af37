// Command conformance is the Go client, driven by JSON on its standard input: see clients/conformance/README.md.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"
	"sync"
	"time"

	throng "github.com/throng-push/throng/clients/go"
)

var printing sync.Mutex

// last has the last subscription of each client.
var last sync.Map

func print(client, event string, values map[string]any) {
	values["client"], values["event"] = client, event
	text, err := json.Marshal(values)
	if err != nil {
		panic(err)
	}
	printing.Lock()
	defer printing.Unlock()
	fmt.Println(string(text))
}

type given struct {
	Transports     []throng.Transport `json:"transports"`
	Heartbeat      int                `json:"heartbeat_ms"`
	OpenTimeout    int                `json:"open_timeout_ms"`
	RequestTimeout int                `json:"request_timeout_ms"`
	PublishTimeout int                `json:"publish_timeout_ms"`
	PollWait       int                `json:"poll_wait_ms"`
	Random         *float64           `json:"random"`
	Token          string             `json:"token"`
	User           string             `json:"user"`
	NoTime         bool               `json:"no_time"`
	Params         map[string]float64 `json:"params"`
}

// params has the options of a connection by their names on the server: fields of the same name,
// numbers of seconds for durations.
func params(given map[string]float64) (options throng.ConnectionOptions) {
	fields := reflect.ValueOf(&options).Elem()
	for name, value := range given {
		field := fields.FieldByNameFunc(func(own string) bool { return strings.EqualFold(own, name) })
		if _, isTime := field.Interface().(time.Duration); isTime {
			value *= float64(time.Second)
		}
		field.SetInt(int64(value))
	}
	return options
}

func (g given) options() throng.Options {
	options := throng.Options{
		Transports:     g.Transports,
		Token:          g.Token,
		User:           g.User,
		NoTime:         g.NoTime,
		Params:         params(g.Params),
		Heartbeat:      time.Duration(g.Heartbeat) * time.Millisecond,
		OpenTimeout:    time.Duration(g.OpenTimeout) * time.Millisecond,
		RequestTimeout: time.Duration(g.RequestTimeout) * time.Millisecond,
		PublishTimeout: time.Duration(g.PublishTimeout) * time.Millisecond,
		PollWait:       time.Duration(g.PollWait) * time.Millisecond,
	}
	if g.Random != nil {
		options.Random = func() float64 { return *g.Random }
	}
	return options
}

type command struct {
	Command  string   `json:"command"`
	Client   string   `json:"client"`
	URL      string   `json:"url"`
	Options  given    `json:"options"`
	Channels []string `json:"channels"`
	Since    string   `json:"since"`
	History  int      `json:"history"`
	Pace     int      `json:"pace_ms"`
	Volatile bool     `json:"volatile"`
	Presence bool     `json:"presence"`
	State    bool     `json:"state"`
	Info     any      `json:"info"`
	Channel  string   `json:"channel"`
	ID       string   `json:"id"`
	Data     any      `json:"data"`
	// Name is of the message's event.
	Name string         `json:"name"`
	Tags map[string]any `json:"tags"`
	// Key is of a state. IfMatch is an id, or null for a key that must have no value.
	Key       string          `json:"key"`
	IfMatch   json.RawMessage `json:"if_match"`
	Limit     int             `json:"limit"`
	SinceTime int64           `json:"since_time"`
	Order     string          `json:"order"`
}

func orNull(text string) any {
	if text == "" {
		return nil
	}
	return text
}

func decoded(message throng.Message) any {
	var value any
	if message.ContentType != "application/json" || message.JSON(&value) != nil {
		return message.Text()
	}
	return value
}

func follow(ctx context.Context, client *throng.Client, c command) {
	var targets []throng.Target
	since := map[throng.Target]string{}
	for _, name := range c.Channels {
		targets = append(targets, throng.Channel(name))
		if c.Since != "" {
			since[throng.Channel(name)] = c.Since
		}
	}
	subscription := client.Subscribe(targets...)
	subscription.History, subscription.Since = c.History, since
	subscription.Pace = time.Duration(c.Pace) * time.Millisecond
	subscription.State, subscription.Info = c.State, c.Info
	last.Store(c.Client, subscription)
	subscription.OnStateEnd = func(end throng.StateEnd) {
		print(c.Client, "complete", map[string]any{"channel": end.Target.Name(), "id": end.ID})
	}
	subscription.OnEnded = func(end throng.Ended) {
		print(c.Client, "ended", map[string]any{"channel": end.Target.Name(), "id": end.ID})
	}
	subscription.OnUnread = func(told throng.Unread) {
		fields := map[string]any{"read": orNull(told.Read), "unread": told.Unread}
		if told.Channel != "" {
			fields["channel"] = told.Channel
		}
		print(c.Client, "unread", fields)
	}
	subscription.OnConflated = func(skipped throng.Conflated) {
		print(c.Client, "conflated", map[string]any{"channel": skipped.Target.Name(), "count": skipped.Count})
	}
	subscription.OnErased = func(notice throng.Erased) {
		print(c.Client, "erased", map[string]any{
			"channel": notice.Target.Name(), "id": notice.ID,
			"erased": orNull(notice.Erased), "erased_up_to": orNull(notice.ErasedUpTo),
		})
	}
	subscription.OnGap = func(gap throng.Gap) {
		print(c.Client, "gap", map[string]any{"channel": gap.Target.Name(), "id": gap.ID, "missed": gap.Missed})
	}
	subscription.OnUnreadable = func(message throng.Unreadable) {
		print(c.Client, "unreadable", map[string]any{
			"channel": message.Target.Name(), "id": message.ID, "reason": message.Reason,
		})
	}
	if c.Presence {
		subscription.OnPresence = func(event throng.PresenceEvent) {
			left := []string{}
			for _, each := range event.Left {
				left = append(left, each.User)
			}
			members := map[string]any{}
			for key, member := range event.Members {
				members[key] = member.Info
			}
			print(c.Client, "presence", map[string]any{
				"channel": event.Target.Name(), "connections": event.Connections, "users": event.Users,
				"joined": append([]string{}, event.Joined...), "left": left,
				"updated": append([]string{}, event.Updated...), "partial": event.Partial, "members": members,
			})
		}
	}
	subscription.OnState = func(state throng.State) {
		print(c.Client, "state", map[string]any{
			"state": state.Name, "transport": state.Transport, "reason": state.Reason,
			"delay_ms": float64(state.Delay) / float64(time.Millisecond),
		})
	}
	for message, err := range subscription.Messages(ctx) {
		var refused *throng.Error
		if errors.As(err, &refused) {
			print(c.Client, "error", map[string]any{"code": refused.Code, "message": refused.Message})
			return
		}
		if err != nil {
			return
		}
		told := map[string]any{
			"channel": message.Target.Name(), "id": nil, "time": nil,
			"data": decoded(message), "replayed": message.Replayed, "content_type": message.ContentType,
			"name": nil, "tags": map[string]any{}, "from": nil, "replaces": orNull(message.Replaces),
			"state_key": orNull(message.StateKey), "tombstone": message.Tombstone,
		}
		if message.Event != "" {
			told["name"] = message.Event
		}
		if message.Tags != nil {
			told["tags"] = message.Tags
		}
		if message.From != "" {
			told["from"] = message.From
		}
		if message.ID != "" {
			told["id"] = message.ID
		}
		if !message.Time.IsZero() {
			told["time"] = message.Time.UnixMilli()
		}
		print(c.Client, "message", told)
	}
}

func publish(client *throng.Client, c command) {
	send := client.PublishDraft
	if c.Volatile {
		send = client.PublishVolatile
	}
	draft := throng.Draft{Target: throng.Channel(c.Channel), Data: c.Data, Event: c.Name, Tags: c.Tags}
	published, err := send(context.Background(), draft)
	var refused *throng.Error
	if errors.As(err, &refused) {
		print(c.Client, "unpublished", map[string]any{
			"data": c.Data, "code": refused.Code, "outcome": refused.Outcome, "key": refused.Key,
		})
		return
	}
	if err != nil {
		panic(err)
	}
	var id any
	if published.ID != "" {
		id = published.ID
	}
	print(c.Client, "published", map[string]any{
		"data": c.Data, "id": id, "duplicate": published.Duplicate,
	})
}

// keep prints the state of a channel after each change.
func keep(ctx context.Context, client *throng.Client, c command) {
	state := client.State(throng.Channel(c.Channel))
	show := func() {
		values := map[string]any{}
		for key, message := range state.All() {
			values[key] = decoded(message)
		}
		print(c.Client, "kept", map[string]any{"values": values, "is_complete": state.IsComplete()})
	}
	if state.Ready(ctx) != nil {
		return
	}
	show()
	for _, err := range state.Changes(ctx) {
		if err != nil {
			return
		}
		show()
	}
}

// set sets a key, or removes it.
func set(client *throng.Client, c command) {
	ctx, target := context.Background(), throng.Channel(c.Channel)
	var match string
	if len(c.IfMatch) > 0 && json.Unmarshal(c.IfMatch, &match) != nil {
		panic("if_match is no id")
	}
	var id string
	var err error
	switch {
	case c.Command == "remove" && match != "":
		id, err = client.RemoveIf(ctx, target, c.Key, match)
	case c.Command == "remove":
		id, err = client.Remove(ctx, target, c.Key)
	case len(c.IfMatch) > 0:
		id, err = client.SetIf(ctx, throng.Draft{Target: target, Data: c.Data, StateKey: c.Key}, match)
	default:
		var published throng.Published
		published, err = client.Set(ctx, target, c.Key, c.Data)
		id = published.ID
	}
	var refused *throng.Error
	if errors.As(err, &refused) {
		print(c.Client, "unpublished", map[string]any{
			"data": c.Data, "code": refused.Code, "outcome": refused.Outcome, "key": refused.Key,
		})
		return
	}
	if err != nil {
		panic(err)
	}
	print(c.Client, "published", map[string]any{"data": c.Data, "id": id})
}

// end ends a channel, with a last message if there is data, or opens it.
func end(client *throng.Client, c command) {
	ctx, target := context.Background(), throng.Channel(c.Channel)
	var found throng.Ended
	var err error
	switch {
	case c.Command == "reopen":
		err = client.Open(ctx, target)
	case c.Data != nil:
		found, err = client.EndWith(ctx, throng.Draft{Target: target, Data: c.Data})
	default:
		found, err = client.End(ctx, target)
	}
	var refused *throng.Error
	if errors.As(err, &refused) {
		print(c.Client, "unpublished", map[string]any{
			"data": c.Data, "code": refused.Code, "outcome": refused.Outcome, "key": refused.Key,
		})
		return
	}
	if err != nil {
		panic(err)
	}
	print(c.Client, "published", map[string]any{"data": c.Data, "id": orNull(found.ID)})
}

func read(client *throng.Client, c command) {
	mark := client.Read
	if c.Channel != "" {
		mark = func(ctx context.Context, id string) (throng.ReadMarker, error) {
			return client.ReadIn(ctx, c.Channel, id)
		}
	}
	found, err := mark(context.Background(), c.ID)
	if err != nil {
		panic(err)
	}
	print(c.Client, "read", map[string]any{"read": orNull(found.Read), "unread": found.Unread})
}

func history(client *throng.Client, c command) {
	page := throng.Page{Limit: c.Limit, Newest: c.Order == "newest"}
	if c.SinceTime != 0 {
		page.Since = time.UnixMilli(c.SinceTime)
	}
	found, err := client.History(context.Background(), throng.Channel(c.Channel), page)
	if err != nil {
		panic(err)
	}
	data := []any{}
	for _, message := range found.Messages {
		data = append(data, decoded(message))
	}
	print(c.Client, "history", map[string]any{"data": data})
}

type running struct {
	client *throng.Client
	ctx    context.Context
	cancel context.CancelFunc
}

func main() {
	clients := map[string]running{}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		var c command
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			panic(err)
		}
		client := clients[c.Client]
		switch c.Command {
		case "open":
			made, err := throng.New(c.URL, c.Options.options())
			if err != nil {
				panic(err)
			}
			ctx, cancel := context.WithCancel(context.Background())
			clients[c.Client] = running{made, ctx, cancel}
		case "subscribe":
			go follow(client.ctx, client.client, c)
		case "update":
			found, _ := last.Load(c.Client)
			if err := found.(*throng.Subscription).Update(c.Info); err != nil {
				panic(err)
			}
		case "publish":
			go publish(client.client, c)
		case "keep":
			go keep(client.ctx, client.client, c)
		case "set", "remove":
			go set(client.client, c)
		case "end", "reopen":
			go end(client.client, c)
		case "read":
			go read(client.client, c)
		case "history":
			go history(client.client, c)
		case "close":
			client.cancel()
		}
	}
}
