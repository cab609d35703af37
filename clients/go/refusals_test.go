package throng

import (
	"bytes"
	"log/slog"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

func TestTheErrorCodesAreThoseOfTheReference(t *testing.T) {
	text, err := os.ReadFile("../../docs/reference/http.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := regexp.MustCompile("(?m)^\\| `(\\w+)` \\| (\\d{3}) \\|").FindAllStringSubmatch(string(text), -1)
	found := map[string]int{}
	for _, row := range rows {
		found[row[1]], _ = strconv.Atoi(row[2])
	}
	for code, status := range found {
		if statusOf[code] != status {
			t.Errorf("%s is %d in the reference, %d here", code, status, statusOf[code])
		}
	}
	for code := range statusOf {
		if found[code] == 0 {
			t.Errorf("%s is not in the reference", code)
		}
	}
}

func TestOnlyAnErrorBodyOfTheServerIsItsRefusal(t *testing.T) {
	for _, each := range []struct {
		status int
		body   string
		want   string
		isOwn  bool
	}{
		{403, `{"error":"forbidden","message":"no"}`, "no", true},
		{401, `{"error":"forbidden","message":"no"}`, "answered 401", false},
		{403, `{"error":"forbidden","message":"no","id":1}`, "answered 403", false},
		{403, `{"error":"denied","message":"no"}`, "answered 403", false},
		{403, `{"error":{"code":"forbidden"},"message":"no"}`, "answered 403", false},
		{403, `{"message":"Forbidden"}`, "answered 403", false},
		{403, `["forbidden","no"]`, "answered 403", false},
		{403, "<html><style>a{}</style><h1>Access\n denied</h1>", `answered 403: "Access denied"`, false},
		{400, "", "answered 400: Bad Request", false},
		{404, "null", "is this the URL of a Throng server?", false},
	} {
		response := &answer{status: each.status, header: http.Header{}, body: []byte(each.body)}
		err, isOwn := response.refusal()
		if isOwn != each.isOwn || !strings.Contains(err.Message, each.want) {
			t.Errorf("%d %s: %v, own: %t", each.status, each.body, err, isOwn)
		}
	}
}

func TestACloseIsFinalOnlyIfTheServerSaysWhy(t *testing.T) {
	for _, each := range []struct {
		end  closing
		want string
	}{
		{closing{1008, "forbidden: no", noHint, true}, "forbidden"},
		{closing{1007, "bad_utf8: no", noHint, true}, "bad_utf8"},
		{closing{1008, "forbidden: no", noHint, false}, ""},
		{closing{1008, "policy: no", noHint, true}, ""},
		{closing{1008, "forbidden", noHint, true}, ""},
		{closing{1007, "", noHint, true}, ""},
		{closing{1009, "too_large: no", noHint, true}, ""},
		{closing{4005, "", noHint, true}, "forbidden"},
		{closing{4005, "", noHint, false}, ""},
		{closing{4500, "", noHint, true}, "disconnected"},
	} {
		code := ""
		if ended := each.end.loss("closed", false, true); ended.err != nil {
			code = ended.err.Code
		}
		if code != each.want {
			t.Errorf("%v: got %q, want %q", each.end, code, each.want)
		}
	}
}

func TestEachCauseIsLoggedOnce(t *testing.T) {
	var log bytes.Buffer
	w := &warnings{logger: slog.New(slog.NewTextHandler(&log, nil))}
	for number := range 3 * causesMax {
		w.warn(strconv.Itoa(number/2), "refused")
	}
	if lines := strings.Count(log.String(), "refused"); lines != causesMax {
		t.Errorf("%d lines", lines)
	}
}
