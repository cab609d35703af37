//! A seeded simulation of core and worker on fake sockets.
