package throng

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"
)

// A Transport is how messages arrive.
type Transport string

// The transports, in the order in which they are tried.
const (
	WebSocket Transport = "websocket"
	SSE       Transport = "sse"
	Poll      Transport = "poll"
)

const (
	// Backoff: the bound of the first delay, which doubles with each attempt, up to the cap.
	backoffBase = 500 * time.Millisecond
	backoffCap  = 30 * time.Second
	// The longest delay that a server can impose: a longer one is more likely a mistake.
	retryMax = 24 * time.Hour
	// The server remembers idempotency keys for five minutes; a retry after that could double.
	publishTimeoutMax = 4 * time.Minute
	// As on the server.
	pollWaitMax = 5 * time.Minute
)

// ConnectionOptions are those that the server has for each connection; see "Options of a connection"
// in its reference. The zero value of each field means the server's default.
type ConnectionOptions struct {
	// Heartbeat is the longest silence of the server, in whole seconds, 10 s to an hour.
	Heartbeat time.Duration
	// Pace is the least time between two deliveries of a channel, in whole milliseconds, 10 ms to a
	// minute: messages that come within it go out together, the first after silence at once.
	Pace time.Duration
}

// query has the parameters by which a connection asks the server for its options, but for the pace of
// its channels.
func (o ConnectionOptions) query() (url.Values, error) {
	query := url.Values{}
	if o.Heartbeat != 0 {
		if o.Heartbeat < 10*time.Second || o.Heartbeat > time.Hour || o.Heartbeat%time.Second != 0 {
			return nil, fmt.Errorf("throng: the Heartbeat of a connection must be whole seconds, 10 s to an hour")
		}
		query.Set("heartbeat", strconv.Itoa(int(o.Heartbeat/time.Second)))
	}
	return query, nil
}

// paceMs is the pace of channels in ms, 0 if there is none: that of their subscription, or else of all.
func (o ConnectionOptions) paceMs(pace time.Duration) (int64, error) {
	if pace == 0 {
		pace = o.Pace
	}
	if pace != 0 && (pace < 10*time.Millisecond || pace > time.Minute || pace%time.Millisecond != 0) {
		return 0, fmt.Errorf("throng: a Pace must be whole milliseconds, 10 ms to a minute")
	}
	return pace.Milliseconds(), nil
}

// Options of a client. The zero value of each field means its default.
type Options struct {
	// Token is a token, or a server key of your application.
	Token string
	// GetToken returns a token, instead of Token: it is called before the first request, before the
	// token expires, and after the server has refused one; once at a time. If it fails, it is called
	// again after a backoff. If it returns "", requests and subscriptions fail with no_token.
	GetToken func(context.Context) (string, error)
	// User is the user of the connections, shown by Presence. With a token it may be left out.
	User string
	// NoTime leaves out the time of messages over WebSockets, which makes them smaller. Message.Time is
	// zero then.
	NoTime bool
	// Params are the options that the client asks of the server for its connections.
	Params ConnectionOptions
	// Transports in order of preference. WebSocket, SSE and Poll unless set.
	Transports []Transport
	// HTTPClient sends all requests, and opens WebSockets. Its Timeout must be 0. Unless set, it keeps
	// up to 1,024 idle connections for a minute; a Transport of your own should keep as many as there
	// are goroutines that publish at the same time (MaxIdleConnsPerHost).
	HTTPClient *http.Client
	// Heartbeat is the server's, for transports that do not announce it. 25 s unless set; negative
	// if it sends none.
	Heartbeat time.Duration
	// OpenTimeout is the time for a transport to open. It doubles with each attempt that was too late,
	// up to 30 s or this, whichever is longer. 3 s unless set.
	OpenTimeout time.Duration
	// RequestTimeout is the time after which a request counts as unanswered. 10 s unless set.
	RequestTimeout time.Duration
	// PublishTimeout is the time for a publication with all its attempts. 30 s unless set; at most
	// 4 minutes.
	PublishTimeout time.Duration
	// PollWait is how long a long-poll waits, in whole seconds. 25 s unless set; 1 s to 5 minutes.
	PollWait time.Duration
	// Logger gets a warning for each cause of a refusal, and of a message that cannot be read, once.
	// slog.Default() unless set.
	Logger *slog.Logger
	// Random returns numbers from 0 to 1, for the jitter. Several goroutines call it.
	Random func() float64
}

func (o Options) withDefaults() (Options, error) {
	if o.Heartbeat == 0 {
		// Where the server does not announce it.
		o.Heartbeat = o.Params.Heartbeat
	}
	for _, each := range []struct {
		name  string
		value *time.Duration
		unset time.Duration
		most  time.Duration
	}{
		{"Heartbeat", &o.Heartbeat, 25 * time.Second, retryMax},
		{"OpenTimeout", &o.OpenTimeout, 3 * time.Second, retryMax},
		{"RequestTimeout", &o.RequestTimeout, 10 * time.Second, retryMax},
		{"PublishTimeout", &o.PublishTimeout, 30 * time.Second, publishTimeoutMax},
		{"PollWait", &o.PollWait, 25 * time.Second, pollWaitMax},
	} {
		if *each.value == 0 {
			*each.value = each.unset
		}
		if *each.value > each.most || (*each.value < 0 && each.name != "Heartbeat") {
			return o, fmt.Errorf("throng: the option %s must be from 0 to %v", each.name, each.most)
		}
	}
	if _, err := o.Params.query(); err != nil {
		return o, err
	}
	if _, err := o.Params.paceMs(0); err != nil {
		return o, err
	}
	if flaw := flawOf(o.Token); flaw != "" {
		return o, fmt.Errorf("throng: the Token %s", flaw)
	}
	if o.User != "" {
		if err := User(o.User).check(); err != nil {
			return o, err
		}
	}
	if o.PollWait < time.Second {
		return o, fmt.Errorf("throng: the option PollWait must be at least 1s")
	}
	if o.HTTPClient != nil && o.HTTPClient.Timeout != 0 {
		return o, fmt.Errorf("throng: the Timeout of HTTPClient must be 0: it would end streams")
	}
	if o.Token != "" && o.GetToken != nil {
		return o, fmt.Errorf("throng: give Token or GetToken, not both")
	}
	if o.Transports == nil {
		o.Transports = []Transport{WebSocket, SSE, Poll}
	}
	for _, transport := range o.Transports {
		if _, isKnown := links[transport]; !isKnown {
			return o, fmt.Errorf("throng: there is no transport %q", transport)
		}
	}
	if len(o.Transports) == 0 {
		return o, fmt.Errorf("throng: name at least one transport")
	}
	if o.HTTPClient == nil {
		o.HTTPClient = defaultClient()
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.Random == nil {
		o.Random = rand.Float64
	}
	return o, nil
}

// Idle connections of the default client. The server closes them after 75 s.
const (
	idleConnectionsMax = 1024
	idleTime           = time.Minute
)

// defaultClient is one for all clients. The default of net/http keeps two idle connections for a
// host, so that a hundred publishers would open one for nearly each publication.
var defaultClient = sync.OnceValue(func() *http.Client {
	standard, isStandard := http.DefaultTransport.(*http.Transport)
	if !isStandard {
		// Somebody has put another one in its place, to trace requests for instance.
		return &http.Client{}
	}
	transport := standard.Clone()
	transport.MaxIdleConns = 0
	transport.MaxIdleConnsPerHost = idleConnectionsMax
	transport.IdleConnTimeout = idleTime
	return &http.Client{Transport: transport}
})

// isHeaderText says whether a header may have it: printable ASCII.
func isHeaderText(text string) bool {
	return !strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r > '~' })
}

// backoff grows exponentially with full jitter: 0 to the bound, so that clients do not retry
// together.
func backoff(attempt int, random func() float64) time.Duration {
	bound := min(backoffCap, backoffBase<<min(attempt, 16))
	return time.Duration(random() * float64(bound))
}

// bounded is a delay that the server has named, limited to a day.
func bounded(delay time.Duration) time.Duration { return min(max(0, delay), retryMax) }

func checkedURL(text string) (string, error) {
	scheme, rest, hasScheme := strings.Cut(text, "://")
	if !hasScheme {
		meant := "https://" + strings.TrimLeft(text, "/")
		for _, local := range []string{"localhost", "127.", "[::1]", ":"} {
			if strings.HasPrefix(text, local) {
				meant = "http://" + text
			}
		}
		return "", fmt.Errorf("throng: the URL %q has no scheme; did you mean %q?", text, meant)
	}
	if scheme != "http" && scheme != "https" {
		meant := map[string]string{"ws": "http", "wss": "https"}[scheme]
		if meant == "" {
			meant = "https"
		}
		return "", fmt.Errorf("throng: the URL %q is not an HTTP URL; did you mean %q?", text, meant+"://"+rest)
	}
	parsed, err := url.Parse(text)
	if err != nil || parsed.Host == "" || parsed.RawQuery != "" || parsed.Fragment != "" {
		return "", fmt.Errorf("throng: %q is not a URL with a host and without query and fragment", text)
	}
	return strings.TrimRight(text, "/"), nil
}
