//! Expressions of benchmark files: `clients / 60`, `median(tls.hold.rate) /
//! median(plain.hold.rate)`.
//!
//! A name stands for a list of figures: one per run or phase that it refers to. Operators work
//! element by element; a list of one element is combined with each of the other list. An absent
//! figure makes the result absent.
//!
//! | | |
//! |---|---|
//! | `+ - * /`, `( )` | arithmetic; a division by zero is absent |
//! | `min(a, b)`, `max(a, b)` | element by element |
//! | `floor(a)`, `ceil(a)` | element by element |
//! | `median(a)`, `min(a)`, `max(a)`, `sum(a)` | one figure from a list, without absent elements |
//! | `nth(a, 2)`, `last(a)` | the second element of a list, the last one |
//! | `positive(a)` | `a` where it is more than 0, absent elsewhere |
//! | `or(a, b)` | `a`, or `b` where `a` is absent |

/// A measured or computed value, and the number of connections that it was measured with.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Figure {
    pub(crate) value: Option<f64>,
    pub(crate) connections: usize,
}

impl Figure {
    pub(crate) fn of(value: Option<f64>, connections: usize) -> Figure {
        Figure { value, connections }
    }
}

/// The figures that a name stands for; `None` if there is no such name.
pub(crate) type Lookup<'a> = dyn Fn(&str) -> Option<Vec<Figure>> + 'a;

/// Evaluates an expression to a list.
pub(crate) fn list(text: &str, names: &Lookup<'_>) -> Result<Vec<Figure>, String> {
    let mut parser = Parser { rest: text.trim_start(), names };
    let figures = parser.sum().map_err(|reason| format!("{text:?}: {reason}"))?;
    match parser.rest {
        "" => Ok(figures),
        rest => Err(format!("{text:?}: {rest:?} is no operator")),
    }
}

/// Evaluates an expression to one figure: the median of the list.
pub(crate) fn figure(text: &str, names: &Lookup<'_>) -> Result<Figure, String> {
    Ok(reduced(&list(text, names)?, median))
}

/// The median of what is known; of an even number of values, the mean of the middle two.
pub(crate) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let last = values.len().checked_sub(1)?;
    Some((values[last / 2] + values[last.div_ceil(2)]) / 2.0)
}

/// Each figure divided by the one at its place.
pub(crate) fn quotients(one: &[Figure], other: &[Figure]) -> Vec<Figure> {
    combined(one, other, |one, other| (other != 0.0).then(|| one / other))
}

fn reduced(list: &[Figure], reduce: impl Fn(Vec<f64>) -> Option<f64>) -> Figure {
    let connections = list.iter().map(|figure| figure.connections).max().unwrap_or_default();
    Figure::of(reduce(list.iter().filter_map(|figure| figure.value).collect()), connections)
}

fn combined(
    one: &[Figure],
    other: &[Figure],
    combine: impl Fn(f64, f64) -> Option<f64>,
) -> Vec<Figure> {
    let length = match (one.len(), other.len()) {
        (1, length) | (length, 1) => length,
        (one, other) => one.min(other),
    };
    let at = |list: &[Figure], nth: usize| if list.len() == 1 { list[0] } else { list[nth] };
    let element = |nth| {
        let (one, other) = (at(one, nth), at(other, nth));
        let value = one.value.zip(other.value).and_then(|(one, other)| combine(one, other));
        Figure::of(value, one.connections.max(other.connections))
    };
    (0..length).map(element).collect()
}

/// Numbers with a name: the units of memory of `top` and `/proc`.
pub(crate) fn constant(name: &str) -> Option<Vec<Figure>> {
    let value = match name {
        "kib" => 1_024.0,
        "mib" => 1_048_576.0,
        "gib" => 1_073_741_824.0,
        _ => return None,
    };
    Some(vec![Figure::of(Some(value), 0)])
}

struct Parser<'t, 'n> {
    rest: &'t str,
    names: &'n Lookup<'n>,
}

type Parsed = Result<Vec<Figure>, String>;

impl<'t> Parser<'t, '_> {
    fn sum(&mut self) -> Parsed {
        let mut value = self.product()?;
        while let Some(operator) = self.one_of(&['+', '-']) {
            let sign = if operator == '+' { 1.0 } else { -1.0 };
            value = combined(&value, &self.product()?, |one, other| Some(one + sign * other));
        }
        Ok(value)
    }

    fn product(&mut self) -> Parsed {
        let mut value = self.operand()?;
        while let Some(operator) = self.one_of(&['*', '/']) {
            value = combined(&value, &self.operand()?, |one, other| match operator {
                '*' => Some(one * other),
                _ => (other != 0.0).then(|| one / other),
            });
        }
        Ok(value)
    }

    fn operand(&mut self) -> Parsed {
        if self.one_of(&['(']).is_some() {
            let value = self.sum()?;
            return self.closed(value);
        }
        let word = self.word();
        if word.is_empty() {
            return Err(format!("a number or a name is missing before {:?}", self.rest));
        }
        if let Ok(number) = word.parse() {
            return Ok(vec![Figure::of(Some(number), 0)]);
        }
        if self.one_of(&['(']).is_none() {
            return (self.names)(word).ok_or_else(|| format!("there is no figure {word:?}"));
        }
        let mut arguments = vec![self.sum()?];
        while self.one_of(&[',']).is_some() {
            arguments.push(self.sum()?);
        }
        let value = called(word, &arguments)?;
        self.closed(value)
    }

    fn closed(&mut self, value: Vec<Figure>) -> Parsed {
        self.one_of(&[')']).map(|_| value).ok_or_else(|| "a ) is missing".to_owned())
    }

    fn one_of(&mut self, characters: &[char]) -> Option<char> {
        let found = self.rest.chars().next().filter(|next| characters.contains(next))?;
        self.rest = self.rest[1..].trim_start();
        Some(found)
    }

    fn word(&mut self) -> &'t str {
        let is_end = |next: char| !next.is_alphanumeric() && !"._".contains(next);
        let (word, rest) = self.rest.split_at(self.rest.find(is_end).unwrap_or(self.rest.len()));
        self.rest = rest.trim_start();
        word
    }
}

fn called(function: &str, arguments: &[Vec<Figure>]) -> Parsed {
    let each = |list: &[Figure], change: fn(f64) -> f64| {
        let changed = |one: &Figure| Figure::of(one.value.map(change), one.connections);
        list.iter().map(changed).collect()
    };
    let one = |list: &[Figure], reduce: fn(Vec<f64>) -> Option<f64>| vec![reduced(list, reduce)];
    Ok(match (function, arguments) {
        ("min", [a, b]) => combined(a, b, |a, b| Some(a.min(b))),
        ("max", [a, b]) => combined(a, b, |a, b| Some(a.max(b))),
        ("floor", [a]) => each(a, f64::floor),
        ("ceil", [a]) => each(a, f64::ceil),
        ("median", [a]) => one(a, median),
        ("min", [a]) => one(a, |all| all.into_iter().reduce(f64::min)),
        ("max", [a]) => one(a, |all| all.into_iter().reduce(f64::max)),
        ("sum", [a]) => one(a, |all| all.into_iter().reduce(|sum, next| sum + next)),
        ("nth", [a, n]) => {
            let place = n.first().and_then(|place| place.value).unwrap_or_default() as usize;
            vec![place.checked_sub(1).and_then(|index| a.get(index)).copied().unwrap_or_default()]
        }
        ("last", [a]) => vec![a.last().copied().unwrap_or_default()],
        ("positive", [a]) => combined(a, a, |one, _| (one > 0.0).then_some(one)),
        ("or", [a, b]) => {
            let other = |nth: usize| b.get(nth).or(b.first()).copied().unwrap_or_default();
            let one =
                |(nth, one): (usize, &Figure)| if one.value.is_some() { *one } else { other(nth) };
            a.iter().enumerate().map(one).collect()
        }
        _ => return Err(format!("there is no function {function} of {} figures", arguments.len())),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(name: &str) -> Option<Vec<Figure>> {
        let list = |values: &[f64]| {
            values.iter().map(|&value| Figure::of(Some(value), value as usize)).collect()
        };
        Some(match name {
            "a" => list(&[1.0, 2.0, 9.0]),
            "b" => list(&[2.0, 2.0, 3.0]),
            "run.hold.last" => list(&[7.0]),
            "absent" => vec![Figure::default()],
            _ => return None,
        })
    }

    fn value(text: &str) -> Option<f64> {
        figure(text, &names).expect(text).value
    }

    #[test]
    fn operators_bind_as_in_arithmetic() {
        assert_eq!(value("1 + 2 * 3 - 4 / 2"), Some(5.0));
        assert_eq!(value("(1 + 2) * 3"), Some(9.0));
        assert_eq!(value("min(3, max(1, 2)) * floor(1.9) + ceil(0.1)"), Some(3.0));
    }

    #[test]
    fn lists_are_combined_element_by_element() {
        assert_eq!(value("a / b"), Some(1.0));
        assert_eq!(value("max(a / b)"), Some(3.0));
        assert_eq!(value("median(a) / median(b)"), Some(1.0));
        assert_eq!(value("sum(a) + nth(b, 3)"), Some(15.0));
        assert_eq!(list("a - run.hold.last", &names).map(|all| all.len()), Ok(3));
    }

    #[test]
    fn figures_know_their_connections() {
        assert_eq!(figure("nth(a, 2) / 4", &names).expect("known").connections, 2);
        assert_eq!(figure("a", &names).expect("known").connections, 9);
    }

    #[test]
    fn an_absent_figure_makes_the_result_absent() {
        for text in ["absent + 1", "1 / 0", "nth(a, 4)", "nth(a, 0)", "max(absent)"] {
            assert_eq!(value(text), None, "{text}");
        }
        assert_eq!((value("or(absent, 3)"), value("positive(1 - 1)")), (Some(3.0), None));
        assert_eq!(value("last(b)"), Some(3.0));
    }

    #[test]
    fn errors_name_the_expression() {
        for (text, reason) in [
            ("1 +", "a number or a name is missing"),
            ("(1", "a ) is missing"),
            ("c + 1", "there is no figure \"c\""),
            ("mean(a)", "there is no function mean"),
            ("1 2", "is no operator"),
            ("", "missing"),
        ] {
            let error = figure(text, &names).expect_err(text);
            assert!(error.contains(reason) && error.contains(&format!("{text:?}")), "{error}");
        }
    }
}
