//! Wire formats without I/O: request heads, WebSocket frames, SSE, chunks, throng.v1.
