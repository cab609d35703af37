// Makes a token with golang-jwt for each algorithm. Reads {"claims": {...}, "keys": {"ALG": "KEY"}}
// from standard input, where a key is a secret or a private key in PEM, and prints {"ALG": "TOKEN"}.
package main

import (
	"encoding/json"
	"os"
	"strings"

	"github.com/golang-jwt/jwt/v5"
)

type request struct {
	Claims jwt.MapClaims
	Keys   map[string]string
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func key(algorithm, text string) any {
	switch algorithm[:2] {
	case "HS":
		return []byte(text)
	case "ES":
		return must(jwt.ParseECPrivateKeyFromPEM([]byte(text)))
	case "Ed":
		return must(jwt.ParseEdPrivateKeyFromPEM([]byte(text)))
	}
	return must(jwt.ParseRSAPrivateKeyFromPEM([]byte(text)))
}

func main() {
	decoder := json.NewDecoder(os.Stdin)
	// Times stay whole numbers.
	decoder.UseNumber()
	var asked request
	if err := decoder.Decode(&asked); err != nil {
		panic(err)
	}
	tokens := map[string]string{}
	for algorithm, text := range asked.Keys {
		token := jwt.NewWithClaims(jwt.GetSigningMethod(algorithm), asked.Claims)
		token.Header["kid"] = strings.ToLower(algorithm)
		tokens[algorithm] = must(token.SignedString(key(algorithm, text)))
	}
	if err := json.NewEncoder(os.Stdout).Encode(tokens); err != nil {
		panic(err)
	}
}
