package throng

import (
	"bufio"
	"bytes"
	"io"
	"strconv"
	"time"
)

// streamEvent is one server-sent event.
type streamEvent struct {
	name string
	data []byte
}

// eventStream reads server-sent events.
type eventStream struct {
	lines *bufio.Scanner
	// retry is the last time to retry of the stream; noHint if there was none.
	retry time.Duration
}

func newEventStream(body io.Reader) *eventStream {
	lines := bufio.NewScanner(body)
	lines.Buffer(nil, frameBytesMax)
	lines.Split(splitLine)
	return &eventStream{lines: lines, retry: noHint}
}

// next is the next event with data; io.EOF at the end of the stream.
func (e *eventStream) next() (streamEvent, error) {
	event := streamEvent{name: "message"}
	hasData := false
	for e.lines.Scan() {
		line := e.lines.Bytes()
		if len(line) == 0 {
			if hasData {
				return event, nil
			}
			event.name = "message"
			continue
		}
		name, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(name) {
		case "event":
			event.name = string(value)
		case "data":
			if hasData {
				event.data = append(event.data, '\n')
			}
			event.data = append(event.data, value...)
			hasData = true
		case "retry":
			if ms, err := strconv.ParseUint(string(value), 10, 40); err == nil {
				e.retry = bounded(time.Duration(ms) * time.Millisecond)
			}
		}
	}
	if err := e.lines.Err(); err != nil {
		return event, err
	}
	return event, io.EOF
}

// splitLine splits at \n, \r\n and \r. A \r at the end waits for what follows.
func splitLine(data []byte, atEOF bool) (advance int, token []byte, err error) {
	end := bytes.IndexAny(data, "\r\n")
	switch {
	case end < 0 && atEOF:
		// An event that has not ended does not count.
		return len(data), nil, nil
	case end < 0:
		return 0, nil, nil
	case data[end] == '\n':
		return end + 1, data[:end], nil
	case end+1 < len(data) && data[end+1] == '\n':
		return end + 2, data[:end], nil
	case end+1 < len(data) || atEOF:
		return end + 1, data[:end], nil
	}
	return 0, nil, nil
}
