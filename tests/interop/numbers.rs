//! Memory of the idle program.

use crate::fleet::{Fleet, Shop};

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
