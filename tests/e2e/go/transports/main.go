// Follows a channel over all transports with net/http and coder/websocket, publishes to it, and waits until
// each has the message. Exit code 0 means success.
// Usage: golang-transports URL CHANNEL AUTHORITIES VERSION [CIPHER]
package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/coder/websocket"
)

const text = "from go ✓"

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func config(authorities, version, cipher string) *tls.Config {
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(must(os.ReadFile(authorities))) {
		panic("no authority")
	}
	versions := map[string]uint16{"1.2": tls.VersionTLS12, "1.3": tls.VersionTLS13}
	config := &tls.Config{RootCAs: roots, MinVersion: versions[version], MaxVersion: versions[version]}
	for _, suite := range tls.CipherSuites() {
		if suite.Name == cipher {
			config.CipherSuites = []uint16{suite.ID}
		}
	}
	return config
}

func main() {
	url := os.Args[1] + "/channels/" + os.Args[2]
	settings := config(os.Args[3], os.Args[4], strings.Join(os.Args[5:], ""))
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: settings}}
	deadline, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()

	ask := func(method, url, accept, body string) *http.Response {
		request := must(http.NewRequestWithContext(deadline, method, url, strings.NewReader(body)))
		request.Header.Set("Accept", accept)
		response := must(client.Do(request))
		if response.StatusCode/100 != 2 {
			panic(response.Status)
		}
		return response
	}
	publish := func(body string) (answer struct{ ID string }) {
		response := ask("POST", url, "*/*", body)
		defer response.Body.Close()
		if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
			panic(err)
		}
		return answer
	}
	line := func(response *http.Response, prefix string) string {
		lines := bufio.NewScanner(response.Body)
		for lines.Scan() {
			if found, ok := strings.CutPrefix(lines.Text(), prefix); ok && found != "" {
				return found
			}
		}
		panic("the stream has ended")
	}

	before := publish("before")
	stream := ask("GET", url, "*/*", "")
	events := ask("GET", url, "text/event-stream", "")
	options := &websocket.DialOptions{HTTPClient: client}
	socket, _, err := websocket.Dial(deadline, url, options)
	if err != nil {
		panic(err)
	}
	polled := make(chan string)
	go func() {
		response := ask("GET", url+"?wait=25&since="+before.ID, "*/*", "")
		polled <- string(must(io.ReadAll(response.Body)))
	}()
	publish(text)
	_, message, err := socket.Read(deadline)
	if err != nil {
		panic(err)
	}
	for _, found := range []string{line(stream, ""), line(events, "data: "), string(message), <-polled} {
		if found != text {
			panic(fmt.Sprintf("got %q", found))
		}
	}
}
