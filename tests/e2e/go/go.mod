module throng-tests/tokens

go 1.18

require github.com/golang-jwt/jwt/v5 v5.2.2

require github.com/coder/websocket v1.8.13
