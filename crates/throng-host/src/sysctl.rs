//! Kernel settings, by their sysctl(8) names.

use std::fs;
use std::io;

/// The value of a kernel setting; `None` if it does not exist or cannot be read.
pub fn read(name: &str) -> Option<String> {
    fs::read_to_string(path(name)).ok().map(|text| text.trim().to_owned())
}

/// True if a kernel setting exists, readable or not.
pub fn exists(name: &str) -> bool {
    !matches!(fs::metadata(path(name)), Err(error) if error.kind() == io::ErrorKind::NotFound)
}

/// The nth number, from 0, of a kernel setting: `net.ipv4.tcp_mem` has three.
pub fn number(name: &str, nth: usize) -> Option<u64> {
    read(name)?.split_whitespace().nth(nth)?.parse().ok()
}

/// Changes a kernel setting. Needs root.
pub fn set(name: &str, value: &str) -> io::Result<()> {
    fs::write(path(name), value)
}

/// The shell command that changes a kernel setting.
pub fn command(name: &str, value: &str) -> String {
    if value.is_empty() {
        // sysctl(8) rejects an empty value; the kernel accepts one.
        format!("echo > {}", path(name))
    } else if value.contains(char::is_whitespace) {
        format!("sysctl -w {name}=\"{value}\"")
    } else {
        format!("sysctl -w {name}={value}")
    }
}

/// The range of ephemeral ports, inclusive.
pub(crate) fn local_ports() -> Option<(u16, u16)> {
    port_range(&read("net.ipv4.ip_local_port_range")?)
}

fn path(name: &str) -> String {
    format!("/proc/sys/{}", name.replace('.', "/"))
}

/// Parses a range such as `32768 60999`.
fn port_range(text: &str) -> Option<(u16, u16)> {
    let mut bounds = text.split_whitespace().map(str::parse);
    let (low, high) = (bounds.next()?.ok()?, bounds.next()?.ok()?);
    (low <= high).then_some((low, high))
}

/// The number of ports of a list such as `8080,28000-28199` from `low` to `high`, inclusive.
pub(crate) fn reserved_within(list: &str, low: u16, high: u16) -> usize {
    port_ranges(list)
        .map(|(first, last)| (first.max(low), last.min(high)))
        .filter(|(first, last)| first <= last)
        .map(|(first, last)| usize::from(last - first) + 1)
        .sum()
}

/// Adds `port` to a list such as `8080,28000-28199`. The result is in the kernel's form: ascending,
/// with adjacent ranges merged.
pub(crate) fn reserved_with(list: &str, port: u16) -> String {
    let mut ranges: Vec<(u16, u16)> = port_ranges(list).chain([(port, port)]).collect();
    ranges.sort_unstable();
    ranges.dedup_by(|next, before| {
        let touches = next.0 <= before.1.saturating_add(1);
        if touches {
            before.1 = before.1.max(next.1);
        }
        touches
    });
    let text = |&(first, last): &(u16, u16)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    ranges.iter().map(text).collect::<Vec<_>>().join(",")
}

fn port_ranges(list: &str) -> impl Iterator<Item = (u16, u16)> {
    list.split(',').filter_map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some((first.trim().parse().ok()?, last.trim().parse().ok()?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_by_their_names() {
        assert!(read("net.core.somaxconn").is_some());
        assert!(number("net.ipv4.tcp_mem", 2) >= number("net.ipv4.tcp_mem", 1));
        assert_eq!(read("net.core.no_such_setting"), None);
        assert!(exists("net.core.somaxconn") && !exists("net.core.no_such_setting"));
        assert!(set("net.core.no_such_setting", "1").is_err());
        assert!(local_ports().is_some());
    }

    #[test]
    fn a_command_quotes_values_where_the_shell_needs_it() {
        assert_eq!(command("net.core.somaxconn", "4096"), "sysctl -w net.core.somaxconn=4096");
        let empty = command("net.ipv4.ip_local_reserved_ports", "");
        assert_eq!(empty, "echo > /proc/sys/net/ipv4/ip_local_reserved_ports");
        assert_eq!(command("net.ipv4.tcp_mem", "1 2 3"), "sysctl -w net.ipv4.tcp_mem=\"1 2 3\"");
    }

    #[test]
    fn port_lists_are_counted_and_merged() {
        assert_eq!(port_range("32768\t60999"), Some((32_768, 60_999)));
        assert_eq!(port_range("60999 32768"), None);
        assert_eq!(port_range(""), None);
        assert_eq!(reserved_within("8080,28000-28199", 1, 65_535), 201);
        assert_eq!(reserved_within("8080,28000-28199", 28_100, 28_109), 10);
        assert_eq!(reserved_within("", 1, 65_535), 0);
        assert_eq!(reserved_with("", 80), "80");
        assert_eq!(reserved_with("9000,28000-28199", 8080), "8080,9000,28000-28199");
        assert_eq!(reserved_with("8081-8085,8070-8079", 8080), "8070-8085");
        assert_eq!(reserved_with("65535", 65_535), "65535");
    }
}
