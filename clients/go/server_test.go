package throng_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	throng "github.com/throng-push/throng/clients/go"
)

// waitMax limits failures only: a test that passes does not wait for it.
const waitMax = 20 * time.Second

var (
	all       = []throng.Transport{throng.WebSocket, throng.SSE, throng.Poll}
	listening = regexp.MustCompile(`listening on (http://\S+)`)
	secret    = []byte("0123456789abcdef0123456789abcdef")
)

func binary(t *testing.T) string {
	t.Helper()
	path := os.Getenv("THRONG_BIN")
	if path == "" {
		path = filepath.Join("..", "..", "target", "debug", "throng")
	}
	path, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// serve starts the real server, and returns its URL.
func serve(t *testing.T, config string) string {
	t.Helper()
	directory := t.TempDir()
	file := filepath.Join(directory, "throng.toml")
	for path, text := range map[string]string{file: config, filepath.Join(directory, "secret"): string(secret)} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	command := exec.Command(binary(t), "serve", "--config", file, "--listen", "127.0.0.1:0",
		"--drain-window", "200ms", "--token-leeway", "0s")
	command.Dir = directory
	output, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	command.Stderr = command.Stdout
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(output)
	address := ""
	log := ""
	for address == "" && lines.Scan() {
		log += lines.Text() + "\n"
		if found := listening.FindStringSubmatch(lines.Text()); found != nil {
			address = found[1]
		}
	}
	if address == "" {
		t.Fatalf("the server did not start:\n%s", log)
	}
	drained := make(chan struct{})
	go func() {
		for lines.Scan() {
		}
		close(drained)
	}()
	t.Cleanup(func() {
		_ = command.Process.Signal(syscall.SIGTERM)
		<-drained
		if err := command.Wait(); err != nil {
			t.Errorf("the server ended with %v", err)
		}
	})
	return address
}

func connect(t *testing.T, url string, options throng.Options) *throng.Client {
	t.Helper()
	client, err := throng.New(url, options)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func ctxOf(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), waitMax)
	t.Cleanup(cancel)
	return ctx
}

func publish(t *testing.T, client *throng.Client, target throng.Target, data any) throng.Published {
	t.Helper()
	published, err := client.Publish(ctxOf(t), target, data)
	if err != nil {
		t.Fatal(err)
	}
	return published
}

func equal(t *testing.T, got, want any) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("got %v, want %v", got, want)
	}
}

// take reads count messages, and calls after with each.
func take(t *testing.T, s *throng.Subscription, count int, after func(int, throng.Message)) []throng.Message {
	t.Helper()
	var heard []throng.Message
	for message, err := range s.Messages(ctxOf(t)) {
		if err != nil {
			t.Fatal(err)
		}
		heard = append(heard, message)
		if after != nil {
			after(len(heard), message)
		}
		if len(heard) == count {
			break
		}
	}
	return heard
}

func TestPublishHistoryAndPresence(t *testing.T) {
	client := connect(t, serve(t, ""), throng.Options{})
	news := throng.Channel("a/b")
	draft := throng.Draft{Target: news, Data: "hello", Key: "k"}
	first, err := client.PublishDraft(ctxOf(t), draft)
	if err != nil {
		t.Fatal(err)
	}
	again, err := client.PublishDraft(ctxOf(t), draft)
	equal(t, err, nil)
	equal(t, again, throng.Published{ID: first.ID, Duplicate: true})
	publish(t, client, news, map[string]int{"n": 1})
	publish(t, client, news, []byte{0, 255})
	page, err := client.History(ctxOf(t), news, throng.Page{After: first.ID})
	equal(t, err, nil)
	equal(t, []string{page.Messages[0].Text(), page.Messages[1].Text()}, []string{`{"n":1}`, "\x00\xff"})
	equal(t, []bool{page.Recovered, page.More}, []bool{true, false})
	presence, err := client.Presence(ctxOf(t), news, 0)
	equal(t, err, nil)
	equal(t, presence.Connections, 0)
}

func TestAChannelIsCreatedWithItsFirstMessages(t *testing.T) {
	client := connect(t, serve(t, ""), throng.Options{})
	properties := throng.Properties{ContentType: "application/json", TTL: time.Minute}
	first := []throng.Draft{{Data: 7}, {Data: map[string]int{"n": 1}, Event: "e"}}
	made, err := client.Create(ctxOf(t), "a/b", properties, first...)
	equal(t, err, nil)
	equal(t, []any{made.Channel, made.Properties, len(made.IDs)}, []any{"a/b", properties, 2})
	page, err := client.History(ctxOf(t), throng.Channel("a/b"), throng.Page{})
	equal(t, err, nil)
	equal(t, []string{page.Messages[0].Text(), page.Messages[1].ID}, []string{"7", made.IDs[1]})
	again, err := client.Create(ctxOf(t), "a/b", properties, throng.Draft{Data: 8})
	equal(t, err, nil)
	made.IDs = nil
	equal(t, again, made)
	shown, err := client.Creation(ctxOf(t), "a/b")
	equal(t, err, nil)
	equal(t, shown, made)
	var refused *throng.Error
	_, err = client.Create(ctxOf(t), "a/b", throng.Properties{})
	equal(t, errors.As(err, &refused), true)
	equal(t, refused.Code, "already_created")
	_, err = client.Create(ctxOf(t), "c", throng.Properties{}, throng.Draft{Target: throng.Channel("c"), Data: 1})
	equal(t, err != nil, true)
}

func TestABatchSaysWhatBecameOfEachLine(t *testing.T) {
	client := connect(t, serve(t, ""), throng.Options{})
	drafts := []throng.Draft{
		{Target: throng.Channel("a"), Data: 1},
		{Target: throng.Channel("a//b"), Data: 2, Key: "k"},
		{Target: throng.User("ann"), Data: []byte{1}, ContentType: "image/png"},
	}
	results, err := client.PublishBatch(ctxOf(t), drafts)
	equal(t, err, nil)
	equal(t, []bool{results[0].Err == nil, results[2].Err == nil}, []bool{true, true})
	equal(t, results[1].Err.Code+" "+results[1].Err.Key, "bad_name k")
	page, err := client.History(ctxOf(t), throng.User("ann"), throng.Page{})
	equal(t, err, nil)
	equal(t, page.Messages[0].ContentType, "image/png")
}

func TestHistoryIsReplayedAndThenComesWhatIsLive(t *testing.T) {
	url := serve(t, "")
	for _, transport := range all {
		t.Run(string(transport), func(t *testing.T) {
			client := connect(t, url, throng.Options{Transports: []throng.Transport{transport}})
			channel := throng.Channel(t.Name()[len("Test"):])
			channel = throng.Channel(strings.ReplaceAll(channel.Name(), "/", "-"))
			for number := range 4 {
				publish(t, client, channel, number)
			}
			s := client.Subscribe(channel)
			s.History = 2
			heard := take(t, s, 3, func(count int, _ throng.Message) {
				if count == 2 {
					publish(t, client, channel, "live")
				}
			})
			var seen []string
			for _, message := range heard {
				seen = append(seen, fmt.Sprint(message.Text(), message.Replayed))
			}
			equal(t, seen, []string{"2true", "3true", "livefalse"})
		})
	}
}

func TestItResumesWhereTheLoopWasLeft(t *testing.T) {
	url := serve(t, "")
	for _, transport := range all {
		t.Run(string(transport), func(t *testing.T) {
			client := connect(t, url, throng.Options{Transports: []throng.Transport{transport}})
			targets := []throng.Target{
				throng.Channel("a-" + string(transport)), throng.User("u-" + string(transport)),
			}
			since := map[throng.Target]string{}
			for _, target := range targets {
				since[target] = publish(t, client, target, "first").ID
			}
			s := client.Subscribe(targets[1], targets[0])
			s.Since = since
			var heard []string
			for round := range 4 {
				for _, target := range targets {
					publish(t, client, target, fmt.Sprint(round))
				}
				for _, message := range take(t, s, 2, nil) {
					heard = append(heard, message.Text())
				}
			}
			equal(t, heard, strings.Fields("0 0 1 1 2 2 3 3"))
			gaps := 0
			lost := client.Subscribe(targets[0])
			lost.Since = map[throng.Target]string{targets[0]: "other-9"}
			lost.OnGap = func(throng.Gap) { gaps++ }
			equal(t, take(t, lost, 1, nil)[0].Text(), "first")
			equal(t, gaps, 1)
		})
	}
}

func TestThePositionIsThatOfTheReader(t *testing.T) {
	client := connect(t, serve(t, ""), throng.Options{Transports: []throng.Transport{throng.Poll}})
	channel := throng.Channel("a")
	for number := range 5 {
		publish(t, client, channel, number)
	}
	s := client.Subscribe(channel)
	s.History = 5
	for range 5 {
		message := take(t, s, 1, nil)[0]
		equal(t, s.Position(), map[throng.Target]string{channel: message.ID})
	}
}

const guarded = `
[[token-keys]]
secret-file = "secret"
[[channels]]
match = "a"
publish = "anyone"
history = "anyone"
`

func TestTokensAreReplacedWithoutALoss(t *testing.T) {
	url := serve(t, guarded)
	app := connect(t, url, throng.Options{})
	for _, transport := range all {
		t.Run(string(transport), func(t *testing.T) {
			made := make(chan struct{}, 100)
			getToken := func(context.Context) (string, error) {
				made <- struct{}{}
				return throng.MakeToken(secret, throng.Grant{
					User: "ann", Subscribe: []string{"a"}, History: []string{"a"}, ExpiresIn: 2 * time.Second,
				})
			}
			client := connect(t, url, throng.Options{GetToken: getToken, Transports: []throng.Transport{transport}})
			s := client.Subscribe(throng.Channel("a"))
			s.Since = map[throng.Target]string{throng.Channel("a"): publish(t, app, throng.Channel("a"), 0).ID}
			next := 1
			publish(t, app, throng.Channel("a"), next)
			for message, err := range s.Messages(ctxOf(t)) {
				equal(t, err, nil)
				equal(t, message.Text(), fmt.Sprint(next))
				if len(made) >= 3 {
					break
				}
				next++
				time.Sleep(100 * time.Millisecond)
				publish(t, app, throng.Channel("a"), next)
			}
		})
	}
}

func TestWhatIsNotAllowedHasTheCodeOfTheServer(t *testing.T) {
	url := serve(t, guarded)
	token, err := throng.MakeToken(append(secret, '\n'), throng.Grant{User: "ann", Subscribe: []string{"a"}})
	equal(t, err, nil)
	none := func(context.Context) (string, error) { return "", nil }
	for _, transport := range all {
		transports := []throng.Transport{transport}
		for code, options := range map[string]throng.Options{
			"unauthorized": {Transports: transports},
			"forbidden":    {Transports: transports, Token: token},
			"no_token":     {Transports: transports, GetToken: none},
		} {
			for _, history := range []int{0, 5} {
				s := connect(t, url, options).Subscribe(throng.Channel("b"))
				s.History = history
				for _, err := range s.Messages(ctxOf(t)) {
					var refused *throng.Error
					if !errors.As(err, &refused) || refused.Code != code {
						t.Errorf("%s, %d: got %v, want %s", transport, history, err, code)
					}
				}
			}
		}
	}
	_, err = connect(t, url, throng.Options{}).Publish(ctxOf(t), throng.Channel("b"), 1)
	var refused *throng.Error
	equal(t, errors.As(err, &refused), true)
	equal(t, fmt.Sprint(refused.Code, refused.Status, refused.Outcome), "unauthorized401unpublished")
}

func TestAnEndedContextEndsTheLoop(t *testing.T) {
	url := serve(t, "")
	for _, transport := range all {
		ctx, cancel := context.WithCancelCause(context.Background())
		s := connect(t, url, throng.Options{Transports: []throng.Transport{transport}}).Subscribe(throng.Channel("a"))
		s.OnState = func(state throng.State) {
			if state.Name == "open" {
				cancel(nil)
			}
		}
		for _, err := range s.Messages(ctx) {
			if !errors.Is(err, context.Canceled) {
				t.Errorf("%s: got %v", transport, err)
			}
		}
	}
}

func TestPresenceEventsOfAServerThatHasNoneEndTheSubscription(t *testing.T) {
	url := serve(t, "")
	for _, transport := range all {
		s := connect(t, url, throng.Options{Transports: []throng.Transport{transport}}).Subscribe(throng.Channel("a"))
		s.OnPresence = func(throng.PresenceEvent) {}
		for _, err := range s.Messages(ctxOf(t)) {
			var refused *throng.Error
			if !errors.As(err, &refused) || refused.Code != "bad_request" {
				t.Errorf("%s: got %v", transport, err)
			}
		}
		s = connect(t, url, throng.Options{}).Subscribe(throng.User("ann"))
		s.OnPresence = func(throng.PresenceEvent) {}
		for _, err := range s.Messages(ctxOf(t)) {
			if err == nil || !strings.Contains(err.Error(), "inboxes") {
				t.Errorf("%s: got %v", transport, err)
			}
		}
	}
}

func TestTheExamplesOfTheReadme(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	equal(t, err, nil)
	url := serve(t, "")
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(string(readme), -1)
	run := func(code string) *exec.Cmd {
		// Within the module, so that its dependencies are known.
		directory, err := os.MkdirTemp(".", "example")
		equal(t, err, nil)
		t.Cleanup(func() { os.RemoveAll(directory) })
		program := filepath.Join(directory, "main.go")
		text := strings.ReplaceAll(code, "http://127.0.0.1:8080", url)
		equal(t, os.WriteFile(program, []byte(text), 0o600), nil)
		built := filepath.Join(t.TempDir(), "example")
		output, err := exec.Command("go", "build", "-o", built, "./"+directory).CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, output)
		}
		return exec.Command(built)
	}
	subscriber := run(blocks[0][1])
	output, err := subscriber.StdoutPipe()
	equal(t, err, nil)
	publisher := run(blocks[1][1])
	equal(t, subscriber.Start(), nil)
	client := connect(t, url, throng.Options{})
	for present := 0; present == 0; {
		presence, err := client.Presence(ctxOf(t), throng.Channel("news"), 0)
		equal(t, err, nil)
		present = presence.Connections
	}
	equal(t, publisher.Run(), nil)
	line, err := bufio.NewReader(output).ReadString('\n')
	equal(t, err, nil)
	equal(t, line, "hello\n")
	equal(t, subscriber.Process.Kill(), nil)
	_ = subscriber.Wait()
}
