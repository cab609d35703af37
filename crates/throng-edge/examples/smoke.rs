use std::sync::Arc;
use throng_core::*;
fn main() {
    let port: u16 = std::env::args().nth(1).unwrap_or("0".into()).parse().unwrap();
    let workers: usize = std::env::args().nth(2).unwrap_or("2".into()).parse().unwrap();
    let plan = throng_edge::Plan::new(throng_edge::Settings {
        listen: ([127, 0, 0, 1], port).into(),
        workers,
        ..Default::default()
    })
    .unwrap_or_else(|e| panic!("{e}"));
    println!(
        "listening on http://{} {} {}",
        plan.address(),
        plan.workers(),
        plan.connections_max()
    );
    let rules = Arc::new(Rules::default());
    let engine: Arc<dyn Engine> = Arc::new(MemoryEngine::new(
        Epoch::starting_at(1234567),
        Arc::clone(&rules),
        plan.mailboxes(),
        1 << 30,
    ));
    let access: Arc<dyn Access> = Arc::new(Allow);
    let edge = plan.start(&engine, &access, &rules).unwrap();
    let mut line = String::new();
    while std::io::stdin().read_line(&mut line).unwrap() > 0 {
        let mut parts = line.trim().splitn(2, ' ');
        let (c, m) = (parts.next().unwrap(), parts.next().unwrap_or(""));
        if c == "drain" {
            break;
        }
        let now =
            std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis()
                as u64;
        let p = engine.publish(
            now,
            Publication {
                channel: ChannelName::channel(c),
                body: Body::Text(m.into()),
                content_type: None,
                idempotency_key: None,
                except: None,
            },
        );
        println!("{p:?}");
        line.clear();
    }
    edge.drain();
    edge.join();
    println!("ended");
}
