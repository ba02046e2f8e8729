//! Addresses that a URL from outside may lead to: public ones, and networks of the operator.
//!
//! Invariant: an address that contains an IPv4 address is judged by that one, too.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

/// Addresses to which a connection for a URL may be opened that a server has named.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AllowedAddresses {
    /// Networks that are allowed although they are not public.
    pub private_networks: Vec<IpNet>,
    /// Whether addresses of this machine are allowed.
    pub loopback: bool,
}

impl AllowedAddresses {
    /// Returns whether a connection to this address may be opened.
    pub fn contain(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        is_public(address)
            || self.loopback && address.is_loopback()
            || self.private_networks.iter().any(|network| network.contains(&address))
    }
}

/// Returns whether the host of a URL is this machine, by name or address.
pub fn is_loopback_host(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    host.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
}

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
        let allowed = AllowedAddresses { private_networks, loopback: false };
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
}
