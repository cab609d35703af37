//! The control plane: every request of the HTTP reference that is not a long-lived subscription.
//!
//! A worker of the data plane that reads a request which does not subscribe hands the socket off to
//! [`serve()`], with the bytes it has read. Here hyper serves the connection for as long as the
//! client keeps it. When the client asks to subscribe, the socket is handed back to a worker.
//!
//! # Layout
//!
//! Each module uses only modules of the rows below its own.
//!
//! | module | what it is |
//! |---|---|
//! | `serve` | accepts the sockets of both listeners, limits their number, shuts down |
//! | `service` | routes each request to its endpoint |
//! | `api` | publish, batch, history, presence, `HEAD`, `OPTIONS`; what operators do; the login |
//! | `contract` | looks answers up in the OpenAPI document, in debug builds |
//! | `succession` | what the control plane of another process goes on with |
//! | `pages` | static pages, the JavaScript client, health, `/metrics` |
//! | `status` | the samples behind the status page |
//! | `canary` | follows a log of its own over each transport, to find out whether messages arrive |
//! | `redirect` | the listener that sends clients from http to https |
//! | `socket` | the life of a control connection |
//! | `readiness` | what the probes say |
//! | `control` | the state that all connections share |
//! | `authentication` | who sends a request, and who is an operator |
//! | `revocations` | the owner of the file of revocations |
//! | `kept_changes` | changes what users follow: in the store, in memory, on connections |
//! | `late_answer` | waits for answers that may come later |
//! | `site` | the site of the documentation |
//! | `http` | responses, error responses, bodies, names, queries, origins |
//! | `drain` | the state of a shutdown |
//! | `hold` | the control plane at rest, while another process may take over |
//! | `canary_report` | what the canary has found |
//! | `health` | what the binary reports for the probes |
//! | `edge` | what the control plane needs of the data plane, as two traits |
//! | `certificates` | what the status page shows of certificates |
//! | `cluster` | what the status page shows of several nodes |
//! | `data_figures` | what the status page shows of the data directory |
//! | `charts` | the values of the charts of the status page |
//! | `carried` | what the processes before this one have counted |
//! | `memory_quota` | memory that many requests share |
//! | `metrics` | what the control plane counts |
//! | `settings` | limits and timeouts |
//! | `unshared` | what clients are told whose change is not known to be made on several servers |
//!
//! The last twelve do not use each other, except that `metrics` and `canary_report` name ailments
//! of `health`, `metrics` what `certificates`, `cluster` and `data_figures` have, and that `hold`
//! keeps handoffs of `edge`.
//!
//! # Invariants
//!
//! * A request that subscribes never reaches hyper, and no byte of it is lost on the way back.
//! * The last request of a client is answered before its connection is closed or handed off.
//! * Every refusal has an error code of the reference, and is counted under it.
//! * Everything that may become large is limited for all connections together: bodies until they
//!   are published, responses until clients have read them.

mod api;
mod authentication;
mod canary;
mod canary_report;
mod carried;
mod certificates;
mod charts;
mod cluster;
mod contract;
mod control;
mod data_figures;
mod drain;
mod edge;
mod health;
mod hold;
mod http;
mod kept_changes;
mod late_answer;
mod memory_quota;
mod metrics;
mod mortal;
mod pages;
mod readiness;
mod redirect;
mod revocations;
mod serve;
mod service;
mod settings;
mod site;
mod socket;
mod status;
mod succession;
mod unshared;
mod user_erasures;

pub use certificates::{CertificateStatus, RenewalStatus, TlsStatus};
pub use cluster::{ClusterStatus, NodeStatus};
pub use control::Control;
pub use data_figures::DataFigures;
pub use edge::{
    AdmissionMetrics, Edge, EdgeCounter, EdgeMetrics, Handoff, HandoffReceiver,
    SubscribedConnections, TlsConnection,
};
pub use health::{Ailment, Departure, Health, Upgrade, UpgradeState};
pub use hold::Hold;
pub use kept_changes::{KeptState, KeptTaker};
pub use metrics::{MetricSource, OtherMetric, OtherValue};
pub use readiness::Condition;
pub use redirect::{Redirect, RedirectCounts};
pub use revocations::revoke_action;
pub use serve::{AdminListener, serve};
pub use settings::{Limits, Settings};
pub use site::{Site, SiteError};
