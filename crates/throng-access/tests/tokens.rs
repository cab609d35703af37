//! Tokens of other libraries and of the RFCs, and attacks on the way in which tokens are checked.

mod tokens {
    mod attacks;
    mod libraries;
    mod rfc;
    mod support;
}
