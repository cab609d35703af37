//! Tokens, keys and revocation, each beside the same load without access control.

mod connections;
mod fan_out;
mod refusals;
mod revocation;

use throng_report::Unit;

use super::values::Deliveries;
use crate::context::{Abort, Benchmark, Context};
use crate::definition::{Definition, Measurement, Scope};
use crate::keys::Keys;

pub(super) static BENCHMARK: Benchmark = Benchmark { definition: &DEFINITION, run };

static DEFINITION: Definition = Definition {
    name: "access",
    title: "The cost of access control",
    story: "A server on the internet checks who connects. A token has to be verified, and its \
            user, grants and expiry kept for as long as the connection lives; a revoked user has \
            to be found among all others.",
    source: "Throng",
    year: 2026,
    hardware: "this machine",
    setup: "WebSockets connect, and all lose their connections at once: to an open server, with \
            `?user=`, and with HS256 and ES256 tokens, each with a user of its own; in turn, then \
            in the opposite order. Then a channel with 15,000 subscribers, with tokens and \
            without. Then connects one after another with good tokens, with bad ones, and with \
            more bad ones than an address may show. At last a user among all is revoked while \
            messages go to all.",
    differences: &["This is the original."],
    measurements: &[
        Measurement::less("memory_open", "memory per connection, open server", Unit::Bytes)
            .per_connection(),
        Measurement::less("memory_token_more", "more with a token (16 B at most)", Unit::Bytes)
            .per_connection(),
        Measurement::less("memory_user", "memory per connection, with ?user=", Unit::Bytes)
            .per_connection(),
        Measurement::less(
            "memory_user_token_more",
            "more with a token of that user (40 B at most)",
            Unit::Bytes,
        )
        .per_connection(),
        Measurement::less(
            "connect_open",
            "server's processor time per connect, open server",
            Unit::Milliseconds,
        ),
        Measurement::less(
            "connect_hs256_more",
            "more with an HS256 token (10 µs at most)",
            Unit::Milliseconds,
        ),
        Measurement::less(
            "connect_es256_more",
            "more with an ES256 token, the first time",
            Unit::Milliseconds,
        ),
        Measurement::less(
            "again_es256_more",
            "more with the same ES256 token again (5 µs at most)",
            Unit::Milliseconds,
        ),
        Measurement::less("return_open", "until all are back, open server", Unit::Milliseconds),
        Measurement::less(
            "return_es256_share",
            "with ES256 tokens, of that (1.2 at most)",
            Unit::Share,
        ),
        Measurement::less(
            "fan_out_open",
            "processor time per delivery, open server",
            Unit::Milliseconds,
        ),
        Measurement::less("fan_out_share", "with tokens, of that (1.03 at most)", Unit::Share),
        Measurement::less(
            "last_open",
            "last delivery of a message, open server",
            Unit::Milliseconds,
        ),
        Measurement::less("last_share", "with tokens, of that (1.03 at most)", Unit::Share),
        Measurement::less("good_token", "accept to close with a good token", Unit::Milliseconds),
        Measurement::less(
            "bad_token_share",
            "with a bad token, of that (0.9 at most)",
            Unit::Share,
        ),
        Measurement::less(
            "limited_share",
            "beyond the limit of bad tokens, of that (0.5 at most)",
            Unit::Share,
        ),
        Measurement::less(
            "revoked",
            "until a revoked user is gone (1 s at most)",
            Unit::Milliseconds,
        ),
        Measurement::less(
            "revocation_delay",
            "the slowest message meanwhile, later by (20 ms at most)",
            Unit::Milliseconds,
        ),
        Measurement::DELIVERED,
        Measurement::EXPECTED,
    ],
    scope: Scope::of(100_000).held_s(10).big().broadcasting().in_rounds(connections::ROUNDS),
};

fn run(context: &mut Context<'_>) -> Result<(), Abort> {
    let keys = Keys::make(context.program()).map_err(Abort::Failed)?;
    let mut deliveries = Deliveries::default();
    connections::run(context, &keys)?;
    fan_out::run(context, &keys, &mut deliveries)?;
    refusals::run(context, &keys)?;
    revocation::run(context, &keys, &mut deliveries)?;
    context.record_all(
        [
            ("delivered", Some(deliveries.received as f64)),
            ("expected", Some(deliveries.expected as f64)),
        ],
        context.size.connections,
    );
    Ok(())
}
