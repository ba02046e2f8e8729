//! Documented figures, measured on the built program.

use std::time::{Duration, Instant};

use crate::fleet::{Fleet, Shop};

#[tokio::test]
async fn it_is_ready_in_under_a_second_with_all_upstreams_down() {
    // The discard port has no listener, no program has this name, and `sleep` never responds.
    let mut upstreams = String::new();
    for number in 0..4 {
        upstreams += &format!("[upstreams.http{number}]\nurl = \"http://127.0.0.1:9/mcp\"\n");
        upstreams += &format!("[upstreams.gone{number}]\ncommand = \"/nonexistent/{number}\"\n");
    }
    upstreams += "[upstreams.silent]\ncommand = \"sleep\"\nargs = [\"1000\"]\n";
    let fleet = Fleet::new(&upstreams);
    let start = Instant::now();
    let served = fleet.serve().await;
    let ready = start.elapsed();
    assert!(ready < Duration::from_secs(1), "ready after {ready:?}");
    println!("ready after {ready:?} with 9 upstreams down");
    assert!(served.stop().await);
}

#[tokio::test]
async fn it_idles_in_under_15_mib_of_its_own_with_ten_http_upstreams() {
    let mut shops = Vec::new();
    let mut upstreams = String::new();
    for number in 0..10 {
        let shop = Shop::open().await;
        upstreams += &format!("[upstreams.shop{number}]\nurl = {:?}\n", shop.url);
        shops.push(shop);
    }
    let fleet = Fleet::new(&upstreams);
    let mut served = fleet.serve().await;
    for number in 0..10 {
        served.logged("upstream listed", &format!("shop{number}")).await;
    }
    let mib = served.own_bytes() as f64 / f64::from(1 << 20);
    println!("{mib:.1} MiB of its own with ten HTTP upstreams");
    assert!(mib < 15.0, "{mib:.1} MiB");
    assert!(served.stop().await);
}
