//! Memory of the idle program.

use crate::fleet::{Fleet, Shop};
use crate::lab::process::kib_of;

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
        served.log.logged("upstream listed", &format!("shop{number}")).await;
    }
    let mib = kib_of(served.pid(), "RssAnon") as f64 / 1024.0;
    println!("{mib:.1} MiB of its own with ten HTTP upstreams");
    assert!(mib < 15.0, "{mib:.1} MiB");
    served.stop().await;
}
