//! Source ports and addresses of clients, and conflicts with the server's port.

use throng_units::format::{count, counted};

use crate::preflight::capacity::Capacity;
use crate::preflight::check::{Check, CheckVerdict, verdict};
use crate::preflight::demand::{ClientDemand, Demand};
use crate::sysctl;

/// Number of source addresses that the load generator can use on loopback.
const LOOPBACK_ADDRESSES: u64 = 250 * 250;

/// The kernel's default ephemeral range; server ports are below it.
const USUAL: (u16, u16) = (32_768, 60_999);

/// The widest ephemeral range, without privileged ports.
const WIDEST: (u16, u16) = (1_024, 65_535);

const RANGE: &str = "net.ipv4.ip_local_port_range";
const RESERVED: &str = "net.ipv4.ip_local_reserved_ports";
const TW_REUSE: &str = "net.ipv4.tcp_tw_reuse";

/// The source ports of clients: the current and the required range.
struct Ports<'a> {
    clients: &'a ClientDemand,
    connections: u64,
    reserved: &'a str,
    range: (u16, u16),
    /// The required range, at least the current one.
    required: (u16, u16),
}

pub(super) fn checks(demand: &Demand, capacity: &Capacity) -> Vec<Check> {
    let reserved = capacity.reserved_ports.as_deref().unwrap_or_default();
    let ports = demand.clients.as_ref().and_then(|clients| {
        let range = clients.ports.or(capacity.local_ports)?;
        let connections = demand.connections;
        let ports = Ports { clients, connections, reserved, range, required: range };
        Some(Ports { required: ports.range_to_set(), ..ports })
    });
    let mut checks = Vec::new();
    if let Some(port) = demand.server.as_ref().and_then(|server| server.port) {
        let range = ports.as_ref().map(|ports| ports.required).or(capacity.local_ports);
        checks.push(reserved_check(port, range, capacity.reserved_ports.as_deref()));
    }
    match (&ports, &demand.clients) {
        (Some(ports), _) => {
            checks.extend(ports.checks());
            checks.push(tw_reuse(ports, demand.server.is_some(), capacity.tw_reuse));
        }
        (None, Some(_)) => {
            checks.push(Check::new(RANGE, "local ports of clients").unread("ports".to_owned()));
        }
        (None, None) => {}
    }
    checks
}

impl Ports<'_> {
    fn checks(&self) -> Vec<Check> {
        let ports = self.ports_in(self.range);
        let (addresses, targets) = (self.addresses(), self.targets());
        let allows = self.allowed_by(ports);
        let because = format!(
            "{} × {} × {}",
            counted(addresses, "local address", "local addresses"),
            counted(ports, "local port", "local ports"),
            counted(targets, "target port", "target ports"),
        );
        let per_address = self.connections.div_ceil(addresses.saturating_mul(targets));
        let needed = per_address.max(self.comfortable()).min(self.ports_in(WIDEST));
        let severity =
            if allows < self.connections { CheckVerdict::Must } else { CheckVerdict::Should };
        let range_verdict = verdict(self.required != self.range, severity);
        let found = format!("{} ports", count(ports));
        let range = Check::new(RANGE, "local ports of clients, from each of their addresses")
            .judged(found, counted(needed, "port", "ports"), range_verdict)
            .limited(allows, because);
        let text = |(low, high): (u16, u16)| format!("{low} {high}");
        let range = match self.clients.ports {
            Some(_) => Check { name: "source ports", ..range },
            None => range.set(text(self.range), text(self.required)),
        };
        let enough = self.connections.div_ceil(self.ports_in(self.required).max(1) * targets);
        let is_short = enough > addresses;
        if self.clients.addresses.is_none() && !is_short {
            return vec![range];
        }
        let found = count(addresses);
        let addresses = Check::new("source addresses", "each has the local ports to itself")
            .judged(found, count(enough), verdict(is_short, CheckVerdict::Must));
        if !is_short {
            return vec![range, addresses];
        }
        let advice = format!("give {enough} local addresses, or more target ports");
        vec![range, addresses.advised(advice)]
    }

    /// The narrowest sufficient range: the current one, alone or with [`USUAL`] or [`WIDEST`].
    /// Servers listen below the default range, so it grows no further than necessary.
    fn range_to_set(&self) -> (u16, u16) {
        if self.clients.ports.is_some() || self.is_enough(self.range) {
            return self.range;
        }
        let (low, high) = self.range;
        let with = |other: (u16, u16)| (low.min(other.0), high.max(other.1));
        let usual = with(USUAL);
        if self.is_enough(usual) { usual } else { with(WIDEST) }
    }

    fn is_enough(&self, range: (u16, u16)) -> bool {
        let ports = self.ports_in(range);
        self.allowed_by(ports) >= self.connections && ports >= self.comfortable()
    }

    /// Ports per address for a fast search: with half of them free, the kernel finds one quickly.
    fn comfortable(&self) -> u64 {
        self.clients.per_address.unwrap_or_default().saturating_mul(2)
    }

    fn allowed_by(&self, ports: u64) -> u64 {
        self.addresses().saturating_mul(ports).saturating_mul(self.targets())
    }

    fn ports_in(&self, (low, high): (u16, u16)) -> u64 {
        // An explicit bind(2) may use reserved ports.
        let reserved = match self.clients.ports {
            Some(_) => 0,
            None => sysctl::reserved_within(self.reserved, low, high) as u64,
        };
        (u64::from(high.saturating_sub(low)) + 1).saturating_sub(reserved)
    }

    fn addresses(&self) -> u64 {
        self.clients.addresses.unwrap_or(LOOPBACK_ADDRESSES).max(1)
    }

    fn targets(&self) -> u64 {
        self.clients.target_ports.max(1)
    }
}

/// Whether the server's port is reserved: otherwise an outgoing connection may occupy it when the
/// server restarts.
fn reserved_check(port: u16, range: Option<(u16, u16)>, reserved: Option<&str>) -> Check {
    let why = "a connection going out could take the port that the server listens on";
    let check = Check::new(RESERVED, why);
    let needed = port.to_string();
    let (Some((low, high)), Some(reserved)) = (range, reserved) else {
        return check.unread(needed);
    };
    let is_out_of_range = !(low..=high).contains(&port);
    let is_short = !is_out_of_range && sysctl::reserved_within(reserved, port, port) == 0;
    let value = if is_short { sysctl::reserved_with(reserved, port) } else { reserved.to_owned() };
    let found = if reserved.is_empty() { "none" } else { reserved };
    let needed = if is_out_of_range { "none".to_owned() } else { needed };
    check
        .judged(found.to_owned(), needed, verdict(is_short, CheckVerdict::Should))
        .set(reserved, value)
}

/// `tcp_tw_reuse`: ports stay in `TIME_WAIT` for a minute, so clients that reconnect need others.
fn tw_reuse(ports: &Ports<'_>, is_loopback: bool, found: Option<u64>) -> Check {
    let needed = if is_loopback { 2 } else { 1 };
    let check = Check::new(TW_REUSE, "ports linger for a minute; reconnecting clients need more");
    let Some(found) = found else { return check.unread(needed.to_string()) };
    let with_lingering = ports.connections.saturating_mul(2);
    let is_tight = ports.allowed_by(ports.ports_in(ports.required)) < with_lingering;
    let is_allowed = found == 1 || (found == 2 && is_loopback);
    let is_short = is_tight && !is_allowed;
    let needed = if is_tight { needed.to_string() } else { "any".to_owned() };
    let value = if is_short { needed.clone() } else { found.to_string() };
    check
        .judged(found.to_string(), needed, verdict(is_short, CheckVerdict::Should))
        .set(found, value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn capacity() -> Capacity {
        Capacity {
            local_ports: Some(USUAL),
            reserved_ports: Some(String::new()),
            tw_reuse: Some(2),
            ..Capacity::default()
        }
    }

    fn names_short(demand: &Demand, capacity: &Capacity) -> Vec<(&'static str, CheckVerdict)> {
        let all = checks(demand, capacity).into_iter();
        all.filter(|check| check.verdict != CheckVerdict::Ok)
            .map(|check| (check.name, check.verdict))
            .collect()
    }

    #[test]
    fn loopback_has_enough_addresses() {
        assert_eq!(names_short(&Demand::both(1_000_000), &capacity()), []);
        assert_eq!(checks(&Demand::server(1_000_000), &capacity()), []);
    }

    #[test]
    fn one_address_has_too_few_ports() {
        let found = checks(&Demand::clients(50_000), &capacity());
        assert_eq!(found[0].help(), ["sysctl -w net.ipv4.ip_local_port_range=\"1024 65535\""]);
        assert_eq!(found[0].verdict, CheckVerdict::Must);
        assert_eq!(found[1].verdict, CheckVerdict::Ok);
        // In the widest range, ports in `TIME_WAIT` leave too few.
        assert_eq!(found[2].help(), ["sysctl -w net.ipv4.tcp_tw_reuse=1"]);
        let found = checks(&Demand::clients(1_000_000), &capacity());
        assert_eq!(found[1].by_hand, ["give 16 local addresses, or more target ports"]);
    }

    #[test]
    fn a_chosen_port_range_needs_more_addresses() {
        let mut demand = Demand::clients(10_000);
        let clients = demand.clients.as_mut().expect("clients");
        (clients.ports, clients.addresses) = (Some((10_000, 10_999)), Some(2));
        let found = checks(&demand, &capacity());
        let limit = found[0].limit.as_ref().expect("a limit");
        assert_eq!(limit.because, "2 local addresses × 1,000 local ports × 1 target port");
        assert_eq!(found[0].help(), [""; 0]);
        assert_eq!(found[1].by_hand, ["give 10 local addresses, or more target ports"]);
    }

    #[test]
    fn a_narrow_range_grows_no_further_than_necessary() {
        let mut demand = Demand::both(100_000);
        demand.clients.as_mut().expect("clients").per_address = Some(4_000);
        assert_eq!(names_short(&demand, &capacity()), []);
        let narrow = Capacity { local_ports: Some((40_000, 41_000)), ..capacity() };
        let found = checks(&demand, &narrow);
        assert_eq!(found[0].verdict, CheckVerdict::Should);
        assert_eq!(found[0].help(), ["sysctl -w net.ipv4.ip_local_port_range=\"32768 60999\""]);
    }

    #[test]
    fn the_servers_port_is_reserved() {
        let mut demand = Demand::server(1_000);
        demand.server.as_mut().expect("a server").port = Some(8_080);
        assert_eq!(names_short(&demand, &capacity()), []);
        let wide = Capacity { local_ports: Some(WIDEST), ..capacity() };
        assert_eq!(checks(&demand, &wide)[0].help(), [format!("sysctl -w {RESERVED}=8080")]);
        let others = Capacity { reserved_ports: Some("28000-28199".to_owned()), ..wide.clone() };
        let found = checks(&demand, &others);
        assert_eq!(found[0].help(), [format!("sysctl -w {RESERVED}=8080,28000-28199")]);
        let done = Capacity { reserved_ports: Some("8000-8100".to_owned()), ..wide };
        assert_eq!(names_short(&demand, &done), []);
    }

    #[test]
    fn what_cannot_be_read_is_unknown() {
        let found = checks(&Demand::clients(1_000), &Capacity::default());
        assert!(found.iter().all(|check| check.verdict == CheckVerdict::Unknown));
        assert_eq!(reserved_check(8_080, None, None).verdict, CheckVerdict::Unknown);
    }
}
