//! The files of a server, whole and broken, and what clients see of them.

mod broken;
mod clients;
mod files;
mod reload;
mod talk;
