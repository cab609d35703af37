//! Exact decimal numbers and the units that follow them.

/// A number without sign or exponent, exact: `mantissa / 10^decimals`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Number {
    mantissa: u128,
    decimals: u32,
}

impl Number {
    /// Parses digits, optionally grouped (`10_000`, `10,000`), with an optional fraction.
    ///
    /// Leading zeros are rejected: in `--steps 1,000` the comma separates two numbers, and `000`
    /// must not be one of them.
    fn parse(text: &str) -> Option<Number> {
        let (whole, fraction) = match text.split_once('.') {
            Some((whole, fraction)) => (whole, Some(fraction)),
            None => (text, None),
        };
        let mut digits = ungrouped(whole)?;
        if digits.len() > 1 && digits.starts_with('0') {
            return None;
        }
        let mut decimals = 0;
        if let Some(fraction) = fraction {
            digits.push_str(Some(fraction).filter(|text| is_digits(text))?);
            decimals = u32::try_from(fraction.len()).ok()?;
        }
        Some(Number { mantissa: digits.parse().ok()?, decimals })
    }

    /// The product with `unit`; `None` if it is not whole or overflows.
    fn times(self, unit: u128) -> Option<u128> {
        let product = self.mantissa.checked_mul(unit)?;
        let divisor = 10_u128.checked_pow(self.decimals)?;
        product.is_multiple_of(divisor).then_some(product / divisor)
    }

    /// The nearest float.
    fn as_f64(self) -> f64 {
        self.mantissa as f64 / 10_f64.powi(self.decimals as i32)
    }
}

/// Parses a number as a float, for rates and shares.
pub fn decimal(text: &str) -> Option<f64> {
    Number::parse(text).map(Number::as_f64)
}

/// Splits `text` into its number and its unit.
fn split(text: &str) -> (&str, &str) {
    let text = text.trim();
    let is_numeric = |letter: char| letter.is_ascii_digit() || "._,".contains(letter);
    let end = text.find(|letter| !is_numeric(letter)).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    (number, unit.trim_start())
}

/// Parses a number with one of `units` (name, factor) and returns the product.
pub(crate) fn in_units(text: &str, units: &[(&str, u128)]) -> Option<u128> {
    let (number, unit) = split(text);
    let (_, each) = units.iter().find(|(name, _)| unit.eq_ignore_ascii_case(name))?;
    Number::parse(number)?.times(*each)
}

/// The number before the unit, and the unit's factor (`None` without a unit).
pub(crate) fn parts(text: &str, units: &[(&str, u128)]) -> Option<(f64, Option<f64>)> {
    let (number, unit) = split(text);
    let (_, each) = units.iter().find(|(name, _)| unit.eq_ignore_ascii_case(name))?;
    Some((decimal(number)?, (!unit.is_empty()).then_some(*each as f64)))
}

/// The digits of `10000`, `10_000` and `10,000`; commas are accepted only every three digits.
fn ungrouped(text: &str) -> Option<String> {
    let separator = if text.contains(',') { ',' } else { '_' };
    let mut digits = String::with_capacity(text.len());
    for (at, group) in text.split(separator).enumerate() {
        let is_group = match (separator, at) {
            (',', 0) => group.len() <= 3,
            (',', _) => group.len() == 3,
            _ => true,
        };
        if !is_group || !is_digits(group) {
            return None;
        }
        digits.push_str(group);
    }
    Some(digits)
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}
