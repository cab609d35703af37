package throng

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"time"
)

// RFC 7518, section 3.2: a key of the size of the hash, or larger. The server refuses shorter ones.
const secretBytesMin = 32

// A Grant is what a token allows. The lists name channels, where * stands for any text and {user}
// for the user.
type Grant struct {
	// User is who the client is. It may always follow that user's inbox.
	User      string
	Subscribe []string
	Publish   []string
	History   []string
	Presence  []string
	// Update has the channels where the client may show something of itself to the other members.
	Update []string
	// ExpiresIn is 15 minutes if 0.
	ExpiresIn time.Duration
	// Claims are further claims, such as jti or aud, which override the others.
	Claims map[string]any
}

// MakeToken signs a token (HS256) for a client of your application. The secret is that of the
// server's [[token-keys]], at least 32 bytes.
func MakeToken(secret []byte, grant Grant) (string, error) {
	// A file of the secret may end with a line feed, which does not count on the server either.
	if n := len(secret); n > 0 && secret[n-1] == '\n' {
		secret = secret[:n-1]
	}
	if len(secret) < secretBytesMin {
		return "", fmt.Errorf("throng: the secret has %d bytes; HS256 needs %d", len(secret), secretBytesMin)
	}
	if grant.ExpiresIn == 0 {
		grant.ExpiresIn = 15 * time.Minute
	}
	now := time.Now()
	grants := map[string][]string{}
	for name, channels := range map[string][]string{
		"subscribe": grant.Subscribe,
		"publish":   grant.Publish,
		"history":   grant.History,
		"presence":  grant.Presence,
		"update":    grant.Update,
	} {
		if len(channels) > 0 {
			grants[name] = channels
		}
	}
	claims := map[string]any{"iat": now.Unix(), "exp": now.Add(grant.ExpiresIn).Unix(), "throng": grants}
	if grant.User != "" {
		claims["sub"] = grant.User
	}
	for name, claim := range grant.Claims {
		claims[name] = claim
	}
	body, err := json.Marshal(claims)
	if err != nil {
		return "", fmt.Errorf("throng: a claim has no JSON: %w", err)
	}
	encode := base64.RawURLEncoding.EncodeToString
	signed := encode([]byte(`{"alg":"HS256","typ":"JWT"}`)) + "." + encode(body)
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte(signed))
	return signed + "." + encode(mac.Sum(nil)), nil
}
