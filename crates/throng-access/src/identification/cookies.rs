//! Two cookies of one name, both with a token: which of them counts.
//!
//! After a change of a cookie's domain or path a browser sends the old cookie and the new one, and
//! does not say which is which.

use std::sync::Arc;

use throng_wire::{ErrorCode, ErrorResponse};

use super::refused::Refused;
use crate::token::Identity;

/// A verified token and its text.
pub(super) type VerifiedToken<'a> = (Arc<Identity>, &'a str);

/// The verdict on a request with two cookies, by the verdict on each. The valid token counts; the
/// first of two, if they are of the same user.
///
/// # Errors
///
/// `bad_request` for tokens of different users, neither of which a page could have meant with
/// certainty. If none is valid, the refusal that says most about what to do.
pub(super) fn choose_cookie<'a>(
    first: Result<VerifiedToken<'a>, Refused>,
    second: Result<VerifiedToken<'a>, Refused>,
) -> Result<VerifiedToken<'a>, Refused> {
    match (first, second) {
        (Ok(first), Ok(second)) if first.0.user() != second.0.user() => {
            let message = "the request has two cookies with valid tokens of different users";
            Err(ErrorResponse::new(ErrorCode::BadRequest, message).into())
        }
        (Ok(valid), _) | (Err(_), Ok(valid)) => Ok(valid),
        (Err(first), Err(second)) => {
            let is_second = weight(second.code()) > weight(first.code());
            Err(if is_second { second } else { first })
        }
    }
}

/// A token that was not judged may be valid later; one that was valid once is the user's.
fn weight(code: ErrorCode) -> u8 {
    match code {
        ErrorCode::Busy | ErrorCode::TooManyRequests => 3,
        ErrorCode::TokenExpired => 2,
        ErrorCode::TokenRevoked => 1,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choose(codes: [ErrorCode; 2]) -> ErrorCode {
        let [first, second] = codes.map(|code| Err(ErrorResponse::from(code).into()));
        choose_cookie(first, second).expect_err("none is valid").code()
    }

    #[test]
    fn of_two_refusals_the_more_helpful_one_is_told() {
        use ErrorCode::{Busy, Forbidden, InvalidToken, TokenExpired, TokenRevoked};
        for (worse, better) in [
            (InvalidToken, TokenExpired),
            (InvalidToken, TokenRevoked),
            (Forbidden, TokenRevoked),
            (TokenRevoked, TokenExpired),
            (TokenExpired, Busy),
        ] {
            assert_eq!(choose([worse, better]), better);
            assert_eq!(choose([better, worse]), better);
        }
        assert_eq!(choose([InvalidToken, Forbidden]), InvalidToken, "the first of equals");
    }
}
