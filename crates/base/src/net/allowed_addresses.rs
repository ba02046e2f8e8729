//! Servers that a URL from outside may lead to: those with a public name and address, and those in
//! networks of the operator.
//!
//! Invariants: an address that contains an IPv4 address is judged by that one, too. A host is
//! judged as a look-up reads it: `127.1` and `0x7f.1` are addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use url::Host;

/// Servers to which a connection for a URL may be opened that a server has named.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AllowedAddresses {
    /// Networks that are allowed although they are not public.
    pub private_networks: Vec<IpNet>,
    /// Whether addresses of this machine are allowed.
    pub loopback: bool,
    /// Whether the operator has written the name of the host: then any name is allowed.
    pub any_name: bool,
}

/// Reason why no connection may be opened to an address.
pub const NOT_PUBLIC_ADDRESS: &str = "the address is not public; if it may be used, add its \
                                      network to sign_in.private_networks";
/// Reason why no connection may be opened to a host of this name.
pub(crate) const NOT_PUBLIC_NAME: &str = "the name is not one of the public DNS; if the server may be \
                                   used, name it in auth.issuer or auth.token_url";

impl AllowedAddresses {
    /// Returns whether a connection to this address may be opened.
    pub fn contain(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        is_public(address)
            || self.loopback && address.is_loopback()
            || self.private_networks.iter().any(|network| network.contains(&address))
    }

    /// Checks the host of a URL before it is looked up: an address, or a name.
    ///
    /// # Errors
    ///
    /// No connection may be opened to it; the text says why.
    pub fn check_host(&self, host: &str) -> Result<(), &'static str> {
        match address_of(host) {
            Some(address) if self.contain(address) => Ok(()),
            Some(_) => Err(NOT_PUBLIC_ADDRESS),
            None if self.any_name || is_public_name(host) => Ok(()),
            None if self.loopback && is_loopback_host(host) => Ok(()),
            None => Err(NOT_PUBLIC_NAME),
        }
    }
}

/// Returns whether the host of a URL is this machine, by name or address.
pub fn is_loopback_host(host: &str) -> bool {
    match address_of(host) {
        Some(address) => address.to_canonical().is_loopback(),
        None => host.eq_ignore_ascii_case("localhost"),
    }
}

/// Returns the address that a host is, in any spelling that connections accept; `None` if it is a
/// name.
fn address_of(host: &str) -> Option<IpAddr> {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    if let Ok(address) = host.parse() {
        return Some(address);
    }
    // The parser of URLs would also decode escapes, which a look-up does not.
    let is_plain = host.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'.');
    match Host::parse(host) {
        Ok(Host::Ipv4(address)) if is_plain => Some(address.into()),
        _ => None,
    }
}

/// Returns whether a name can be one of the public DNS: whole, and in no domain of
/// [`SPECIAL_DOMAINS`].
fn is_public_name(name: &str) -> bool {
    let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
    let mut labels: Vec<_> = name.split('.').collect();
    let is_label = |label: &&str| {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        !label.is_empty() && label.bytes().all(is_plain)
    };
    // An incomplete name is completed by the machine that looks it up.
    let is_whole = labels.len() > 1 && labels.iter().all(is_label);
    let top = labels.pop().unwrap_or_default();
    // With a number at the end it would be an address.
    let is_number = top.starts_with(|c: char| c.is_ascii_digit());
    is_whole && !is_number && !SPECIAL_DOMAINS.contains(&top)
}

/// Top-level domains whose names lead to no server of the public internet.
const SPECIAL_DOMAINS: [&str; 20] = [
    // IANA, Special-Use Domain Names: RFC 6761, 6762 (multicast DNS), 7686 and 9476. Its further
    // entries are below `arpa`, or names of public servers.
    "alt",
    "example",
    "invalid",
    "local",
    "localhost",
    "onion",
    "test",
    // RFC 3172: infrastructure, with the reverse look-ups, and `home.arpa` of RFC 8375.
    "arpa",
    // ICANN: for private use (resolution of 2024-07-29), and never delegated because private
    // networks use them (2018-02-04).
    "internal",
    "corp",
    "home",
    "mail",
    // RFC 6762, appendix G: further ones that private networks use.
    "intranet",
    "lan",
    "private",
    // Kubernetes, where look-ups complete `NAME.NAMESPACE.svc` with `cluster.local`, and
    // `10-0-0-1.NAMESPACE.pod`.
    "cluster",
    "pod",
    "svc",
    // HashiCorp Consul; the names that systems without a domain give themselves.
    "consul",
    "localdomain",
];

/// Returns whether an address belongs to the public internet (IANA's registries of special-purpose
/// addresses, RFC 6890).
fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => match embedded_v4(address) {
            Some(embedded) => is_public_v4(embedded),
            None => is_public_v6(address),
        },
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let is_special = match (a, b, c) {
        // This network, loopback, multicast, and reserved with the broadcast address.
        (0 | 127 | 224.., ..) => true,
        // Private networks (RFC 1918), link-local, and carrier-grade NAT (RFC 6598).
        (10, ..) | (172, 16..=31, _) | (192, 168, _) | (169, 254, _) | (100, 64..=127, _) => true,
        // Protocol assignments, 6to4 relays, documentation, and benchmarks.
        (192, 0, 0 | 2) | (192, 88, 99) | (198, 51, 100) | (203, 0, 113) => true,
        (198, 18 | 19, _) => true,
        _ => false,
    };
    !is_special
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let [first, second, ..] = address.segments();
    // Global unicast, without protocol assignments (Teredo among them) and documentation.
    let is_special = first == 0x2001 && (second < 0x200 || second == 0xdb8)
        || first == 0x3fff && second < 0x1000;
    first & 0xe000 == 0x2000 && !is_special
}

/// Returns the IPv4 address to which packets for an address are translated: NAT64 (RFC 6052) or
/// 6to4 (RFC 3056). Mapped addresses are canonical before.
fn embedded_v4(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let segments = address.segments();
    let (high, low) = match segments {
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => (high, low),
        [0x2002, high, low, ..] => (high, low),
        _ => return None,
    };
    Some(Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contains(allowed: &AllowedAddresses, address: &str) -> bool {
        allowed.contain(address.parse().expect("an address"))
    }

    #[test]
    fn public_addresses_are_allowed_and_special_ones_are_not() {
        let public = AllowedAddresses::default();
        for address in [
            "1.1.1.1",
            "8.8.8.8",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "126.255.255.255",
            "128.0.0.0",
            "169.253.0.1",
            "169.255.0.1",
            "172.15.255.255",
            "172.32.0.0",
            "192.0.1.1",
            "192.167.0.1",
            "192.169.0.1",
            "198.17.0.1",
            "198.20.0.1",
            "223.255.255.255",
            "2606:4700::1111",
            "2001:4860:4860::8888",
            "2a00::1",
            "::ffff:8.8.8.8",
            "64:ff9b::8.8.8.8",
            "2002:808:808::1",
        ] {
            assert!(contains(&public, address), "{address}");
        }
        for address in [
            "0.0.0.0",
            "0.1.2.3",
            "10.0.0.1",
            "10.255.255.255",
            "100.64.0.1",
            "100.127.255.255",
            "127.0.0.1",
            "127.255.255.254",
            "169.254.169.254",
            "169.254.0.1",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.1",
            "192.0.0.170",
            "192.0.2.1",
            "192.88.99.1",
            "192.168.0.1",
            "198.18.0.1",
            "198.19.255.255",
            "198.51.100.7",
            "203.0.113.7",
            "224.0.0.1",
            "239.255.255.250",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "::ffff:169.254.169.254",
            "::127.0.0.1",
            "::10.0.0.1",
            "64:ff9b::10.0.0.1",
            "64:ff9b::169.254.169.254",
            "64:ff9b:1::1",
            "64:ff9b:1::8.8.8.8",
            "100::1",
            "2001::1",
            "2001:0:53aa::1",
            "2001:10::1",
            "2001:20::1",
            "2001:db8::1",
            "2002:7f00:1::",
            "2002:a00:1::1",
            "2002:a9fe:a9fe::",
            "2002:c0a8:1::1",
            "3fff::1",
            "3fff:fff::1",
            "fc00::1",
            "fd00:ec2::254",
            "fdff::1",
            "fe80::1",
            "fec0::1",
            "ff02::1",
            "ff0e::1",
            "5f00::1",
            "4000::1",
        ] {
            assert!(!contains(&public, address), "{address}");
        }
    }

    #[test]
    fn networks_of_the_operator_and_this_machine_are_allowed_where_that_is_configured() {
        let network = |text: &str| text.parse::<IpNet>().expect("a network");
        let private_networks = vec![network("10.1.0.0/16"), network("fd00:1::/32")];
        let allowed = AllowedAddresses { private_networks, ..AllowedAddresses::default() };
        for address in ["10.1.2.3", "::ffff:10.1.2.3", "fd00:1::7", "8.8.8.8"] {
            assert!(contains(&allowed, address), "{address}");
        }
        for address in ["10.2.0.1", "fd00:2::7", "127.0.0.1", "::1"] {
            assert!(!contains(&allowed, address), "{address}");
        }
        let local = AllowedAddresses { loopback: true, ..AllowedAddresses::default() };
        for address in ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", "8.8.8.8"] {
            assert!(contains(&local, address), "{address}");
        }
        for address in ["10.1.2.3", "0.0.0.0", "::", "169.254.169.254"] {
            assert!(!contains(&local, address), "{address}");
        }
    }

    #[test]
    fn a_host_is_this_machine_in_any_spelling_of_its_address() {
        for host in [
            "localhost",
            "LOCALHOST",
            "127.0.0.1",
            "127.9.9.9",
            "127.1",
            "0x7f.1",
            "0177.0.0.1",
            "2130706433",
            "::1",
            "[::1]",
            "[0:0:0:0:0:0:0:1]",
            "[::ffff:127.0.0.1]",
            "[::ffff:7f00:1]",
        ] {
            assert!(is_loopback_host(host), "{host}");
        }
        for host in [
            "",
            "0.0.0.0",
            "[::]",
            "128.1",
            "localhost.test",
            "a.localhost",
            "127.0.0.1.test",
            "127.0.0.%31",
            "[fe80::1]",
            "[::1%25lo]",
        ] {
            assert!(!is_loopback_host(host), "{host}");
        }
    }

    #[test]
    fn a_name_that_is_not_of_the_public_dns_is_refused() {
        let public = AllowedAddresses::default();
        for host in [
            "id.example.com",
            "id.example.com.",
            "ID.Example.COM",
            "xn--bcher-kva.example.com",
            "a_b.example.com",
            "internal.example.com",
            "local.dev",
            "svc.io",
            "169.254.169.254.nip.io",
        ] {
            assert_eq!(public.check_host(host), Ok(()), "{host}");
        }
        for host in [
            "",
            ".",
            "..",
            "intranet",
            "intranet.",
            "metadata",
            "metadata.google.internal",
            "Metadata.Google.INTERNAL.",
            "host.docker.internal",
            "kubernetes.default.svc",
            "kubernetes.default.svc.cluster",
            "kubernetes.default.svc.cluster.local",
            "10-0-0-1.default.pod",
            "printer.local",
            "printer.local.",
            "router.lan",
            "nas.home",
            "nas.home.arpa",
            "1.0.0.10.in-addr.arpa",
            "1.0.0.0.d.f.ip6.arpa",
            "id.corp",
            "id.intranet",
            "id.private",
            "a.LocalHost",
            "a.localhost.",
            "localhost",
            "localhost.localdomain.",
            "a.test",
            "a.example",
            "a.invalid",
            "a.onion",
            "a.alt",
            "vault.service.consul",
            "id..com",
            ".example.com",
            "id.example.com..",
            "b\u{fc}cher.example.com",
            "id.example.com%00",
            "fe80::1%eth0",
            "fe80::1%25eth0",
            "1.2.3.4.5",
            "0x100.1.1.1",
        ] {
            assert_eq!(public.check_host(host), Err(NOT_PUBLIC_NAME), "{host}");
            let known = AllowedAddresses { any_name: true, ..AllowedAddresses::default() };
            assert_eq!(known.check_host(host), Ok(()), "{host}");
        }
        let local = AllowedAddresses { loopback: true, ..AllowedAddresses::default() };
        assert_eq!(local.check_host("localhost"), Ok(()));
        assert!(local.check_host("a.localhost").is_err() && local.check_host("lan").is_err());
    }

    #[test]
    fn a_host_that_is_an_address_is_judged_as_one_in_any_spelling() {
        let known = AllowedAddresses { any_name: true, ..AllowedAddresses::default() };
        for allowed in [AllowedAddresses::default(), known] {
            for host in ["1.1.1.1", "0x01010101", "1.1", "[2606:4700::1111]", "::ffff:8.8.8.8"] {
                assert_eq!(allowed.check_host(host), Ok(()), "{host}");
            }
            for host in [
                "10.0.0.1",
                "127.1",
                "0x7f.1",
                "2130706433",
                "0xa9fea9fe",
                "169.254.43518",
                "0",
                "[::1]",
                "::ffff:10.0.0.1",
                "[::ffff:a9fe:a9fe]",
            ] {
                assert_eq!(allowed.check_host(host), Err(NOT_PUBLIC_ADDRESS), "{host}");
            }
        }
    }
}
