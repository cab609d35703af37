//! The control plane: the HTTP API and the pages.
