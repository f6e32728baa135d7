//! A store whose machine is gone: it acknowledges nothing, however long it may be silent for what it does.

use std::io::{Write as _, copy};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use gate_tests::proxy::{Listening, PATIENCE, read_until, shown};
use gate_tests::wait::wait_until;
use socket2::{SockFilter, SockRef};

use super::EVERYONE;

/// The network between a gate and a store.
struct Line {
    address: SocketAddr,
    listener: TcpListener,
    streams: Arc<Mutex<Vec<TcpStream>>>,
}

impl Line {
    fn to(store: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let streams = Arc::<Mutex<Vec<TcpStream>>>::default();
        let accepting = listener.try_clone()?;
        let accepted = Arc::clone(&streams);
        thread::spawn(move || {
            for stream in accepting.incoming().map_while(Result::ok) {
                let Ok(store) = TcpStream::connect(store) else { return };
                accepted.lock().unwrap().extend(stream.try_clone());
                for (mut from, mut to) in [(&stream, &store), (&store, &stream)]
                    .map(|(from, to)| (from.try_clone().unwrap(), to.try_clone().unwrap()))
                {
                    thread::spawn(move || {
                        let _ = copy(&mut from, &mut to);
                        // The other end may have gone first.
                        let _ = to.shutdown(Shutdown::Both);
                    });
                }
            }
        });
        Ok(Self { address, listener, streams })
    }

    /// Nothing that is sent to the store's end arrives any more, and nothing is acknowledged.
    fn cut(&self) -> Result<()> {
        let nothing = [SockFilter::new((libc::BPF_RET | libc::BPF_K) as u16, 0, 0, 0)];
        SockRef::from(&self.listener).attach_filter(&nothing)?;
        for stream in &*self.streams.lock().unwrap() {
            SockRef::from(stream).attach_filter(&nothing)?;
        }
        Ok(())
    }
}

#[test]
fn a_machine_that_acknowledges_nothing_is_found_out_soon() -> Result<()> {
    const SLOW: Duration = Duration::from_secs(60);
    let store = Listening::redis()?;
    for slow in ["SET a 1\r\n", "EVAL \"return 1\" 0\r\n"] {
        let line = Line::to(store.address)?;
        let service = "store_timeout = \"300ms\"\nslow_timeout = \"60s\"\nconnections = \"1\"";
        let gate = Listening::gate_with("threads = \"2\"", "resp", line.address, service, EVERYONE)?;
        let mut clients = (0..4).map(|_| gate.connect()).collect::<Result<Vec<_>>>()?;
        for client in &mut clients {
            wait_until("it is not served", || {
                client.write_all(b"INCR n\r\n")?;
                Ok(read_until(client, b"\r\n")?.starts_with(b":"))
            })?;
        }
        line.cut()?;
        let cut = Instant::now();
        // The slow one first: all of them have its patience.
        for (number, client) in clients.iter_mut().enumerate() {
            client.set_read_timeout(Some(PATIENCE.max(SLOW + PATIENCE)))?;
            client.write_all(if number == 0 { slow } else { "INCR n\r\n" }.as_bytes())?;
        }
        for client in &mut clients {
            let said = read_until(client, b"\r\n")?;
            ensure!(said.ends_with(b" reason=store-down\r\n"), "{slow}: {}", shown(&said));
        }
        ensure!(cut.elapsed() < SLOW / 2, "{slow} took {:?}", cut.elapsed());
        println!("{slow:?}: {:?}", cut.elapsed());
    }
    Ok(())
}
