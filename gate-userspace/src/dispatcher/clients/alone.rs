//! A client with a connection to the store of its own.
//!
//! Transactions, subscriptions, a chosen database or user belong to one connection. From the first request
//! that needs it, what the client sends goes to the store as it is and what the store sends comes back as it is;
//! requests are still decoded, priced and charged.
//!
//! **Quota.** A refusal in the middle of a transaction would change what it does. So a client that has spent its
//! quota is not refused here: it waits, and is not read from, until its bucket has room.

use std::cell::RefCell;

use gate_common::abi::{QueryClass, Reason};
use gate_common::units::{MilliRu, Nanos};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf, ReadHalf, WriteHalf};
use tokio::time::sleep;

use super::client::{Client, Ended};
use crate::clock;
use crate::dispatcher::figures::Event;
use crate::dispatcher::hot_cache::apart::Apart;
use crate::dispatcher::identity::Asked;
use crate::dispatcher::service::Service;
use crate::dispatcher::stores::broken::Broken;
use crate::dispatcher::stores::line::Line;
use crate::dispatcher::tenants::ledger::{Charge, TenantId};
use crate::dispatcher::wire::Wire;
use crate::dispatcher::wire::buffer::Buffer;
use crate::dispatcher::wire::resp::CLUSTER;
use crate::policy::Tier;
use crate::protocol::{Refusal, Step};

impl<W: Wire> Client<W> {
    /// Serves the client to its end by a connection of its own to the store. `heard` is what it has sent
    /// since its last reply.
    pub(in crate::dispatcher) async fn serve_alone(
        &self,
        heard: Buffer,
        from_client: &mut OwnedReadHalf,
        service: &Service<W>,
    ) -> Ended {
        service.figures.count(Event::OwnConnection);
        let who = self.who.borrow().clone();
        let opened = match service.in_cluster.get() {
            true => Err(Broken::Cluster),
            false => Line::open(&service.settings, &who).await,
        };
        let mut store = match opened {
            Ok(line) => line.into_socket(),
            Err(broken) => {
                let answer = self.answer_broken(broken, service);
                // It may have left.
                let _ = write_all(self.socket(), &answer).await;
                return Ended::Left;
            }
        };
        let (mut from_store, mut to_store) = store.split();
        let decoder = W::decoder(&service.settings);
        let marks = RefCell::new(Apart::new(service.hot.marker()));
        let requests = Requests {
            client: self,
            service,
            decoder,
            heard,
            highest: Tier::Critical,
            tenant: self.tenant.get(),
            skips: false,
            marks: &marks,
        };
        tokio::select! {
            ended = requests.pass(from_client, &mut to_store) => ended,
            ended = downstream(&mut from_store, self.socket(), &marks) => ended,
        }
    }

    /// What it reads that cannot have a connection.
    fn answer_broken(&self, broken: Broken, service: &Service<W>) -> Vec<u8> {
        if let Broken::Refused(why) = broken {
            return why;
        }
        service.count_refusal(self.tenant.get(), Reason::StoreDown);
        if let Broken::Cluster = broken {
            return CLUSTER.to_vec();
        }
        let mut refusal = Vec::new();
        W::refuse(Refusal { reason: Reason::StoreDown, retry_after: Nanos::ZERO }, &mut refusal);
        refusal
    }
}

/// What a client asks, on its way to its own connection.
struct Requests<'a, W: Wire> {
    client: &'a Client<W>,
    service: &'a Service<W>,
    decoder: W::Decoder,
    heard: Buffer,
    /// The rest of what is being heard is not passed on.
    skips: bool,
    marks: &'a RefCell<Apart>,
    /// The highest tier that the last request may have, and who is charged for it.
    highest: Tier,
    tenant: TenantId,
}

/// What a client has asked.
struct Heard {
    price: MilliRu,
    /// Who it says that it is.
    asked: Option<Asked>,
}

impl<W: Wire> Requests<'_, W> {
    /// From the client to the store, charged.
    async fn pass(mut self, from_client: &mut OwnedReadHalf, to_store: &mut WriteHalf<'_>) -> Ended {
        let mut out = Buffer::default();
        let mut piece = vec![0; PIECE];
        loop {
            let heard = self.next(&mut out);
            let sends = !out.is_empty() && (heard.is_none() || out.len() >= PIECE);
            if sends && to_store.write_all(out.bytes()).await.is_err() {
                return Ended::Left;
            }
            if sends {
                out.clear();
            }
            match heard {
                Some(Ok(Heard { price, asked })) => {
                    if !self.pay(price).await {
                        return Ended::Left;
                    }
                    if let Some(asked) = asked {
                        self.client.witness(&asked, self.service).await;
                    }
                }
                Some(Err(answer)) => {
                    // It may have left.
                    let _ = write_all(self.client.socket(), &answer).await;
                    return Ended::Left;
                }
                None => match from_client.read(&mut piece).await {
                    Ok(0) | Err(_) => return Ended::Left,
                    Ok(len) => self.heard.push(&piece[..len]),
                },
            }
        }
    }

    /// Adds the next request, or the next part of one, to `out`. Returns what it is, or the answer to what
    /// is no request; `None` if more must be heard first.
    fn next(&mut self, out: &mut Buffer) -> Option<Result<Heard, Vec<u8>>> {
        let settings = &self.service.settings;
        loop {
            let step = W::decode(&mut self.decoder, self.heard.bytes());
            let taken = &self.heard.bytes()[..step.consumed()];
            let price = |commands, rows, len| {
                let ledger = self.service.ledger.borrow();
                ledger.price(settings.service, commands, rows, len, QueryClass::Other)
            };
            let found = match step {
                Step::More { .. } => return None,
                Step::Skip { .. } => None,
                Step::Request { request, .. } => {
                    self.service.figures.count(Event::Request);
                    let bytes = W::bytes(&self.decoder, &request, taken);
                    let types = self.service.types.borrow();
                    self.highest = types.classify::<W>(Tier::Critical, &request, bytes).tier;
                    let asked = W::change(&request, bytes);
                    let (tenant, denied) = self.client.tenant_for(&request, bytes);
                    self.tenant = tenant;
                    self.skips = self.refuses(denied, &request, bytes, asked.as_ref());
                    // What the store does not know it refuses in its turn, and a transaction with it.
                    out.push(if self.skips { W::NONSENSE } else { bytes });
                    let mark = if self.skips { None } else { self.service.hot.mark(&request, bytes) };
                    self.marks.borrow_mut().ask(mark, self.skips || W::has_one_answer(&request));
                    let asked = asked.filter(|_| !self.skips);
                    Some(Ok(Heard { price: price(1, W::facts(&request).rows, bytes.len()), asked }))
                }
                Step::Body { len, .. } => {
                    if !self.skips {
                        out.push(taken);
                    }
                    Some(Ok(Heard { price: price(0, 0, len), asked: None }))
                }
                Step::Fault { fault, .. } => {
                    let mut answer = Vec::new();
                    W::answer_fault(&fault, &mut answer);
                    Some(Err(answer))
                }
            };
            self.heard.consume(step.consumed());
            if found.is_some() {
                return found;
            }
        }
    }

    /// Whether a request is denied to the tenant or too long, or gate knows its password to be wrong.
    fn refuses(&self, denied: bool, request: &W::Request, bytes: &[u8], asked: Option<&Asked>) -> bool {
        let login = asked.and_then(|asked| asked.login.as_ref());
        if login.and_then(|login| self.service.tenants.borrow().verifies(login)) == Some(false) {
            self.service.figures.count(Event::LoginFailed);
            return true;
        }
        let is_too_long = || self.service.is_too_long(request, bytes);
        let refuses = |reason| self.service.refuses(self.client, self.tenant, reason);
        denied && refuses(Reason::Unsupported) || is_too_long() && refuses(Reason::TooLarge)
    }

    /// Waits until the tenant can pay; false if it never can.
    async fn pay(&self, price: MilliRu) -> bool {
        let (tenant, shadow) = (self.tenant, self.client.shadow);
        loop {
            let charged = {
                let mut ledger = self.service.ledger.borrow_mut();
                ledger.refresh();
                let tier = ledger.tier(tenant).max(self.highest);
                let rung = ledger.rung(self.service.settings.service, tier);
                ledger.charge(tenant, price, rung, clock::monotonic(), shadow)
            };
            match charged {
                Charge::Passed(charged) => {
                    self.service.ledger.borrow().count_passed(tenant, charged);
                    return true;
                }
                Charge::Refused(Refusal { reason: Reason::TooLarge | Reason::UnknownSource, .. }) => {
                    return false;
                }
                Charge::Refused(Refusal { reason: Reason::Penalty, .. }) => sleep(A_TICK.into()).await,
                Charge::Refused(refusal) => sleep(refusal.retry_after.max(SHORTEST_WAIT).into()).await,
            }
        }
    }
}

/// From the store to the client, as fast as the client reads.
async fn downstream(
    from_store: &mut ReadHalf<'_>,
    to_client: &OwnedWriteHalf,
    marks: &RefCell<Apart>,
) -> Ended {
    let mut piece = vec![0; PIECE];
    loop {
        match from_store.read(&mut piece).await {
            Ok(0) | Err(_) => return Ended::Left,
            Ok(len) => {
                marks.borrow_mut().hear(&piece[..len]);
                if write_all(to_client, &piece[..len]).await.is_err() {
                    return Ended::Left;
                }
            }
        }
    }
}

/// Writes everything, by and by.
pub(in crate::dispatcher) async fn write_all(
    socket: &OwnedWriteHalf,
    mut bytes: &[u8],
) -> std::io::Result<()> {
    while !bytes.is_empty() {
        socket.writable().await?;
        match socket.try_write(bytes) {
            Ok(len) => bytes = &bytes[len..],
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// What is read or written in one go.
const PIECE: usize = 16 << 10;
/// A penalty says nothing of its end: what is decided is decided this often, unless configured otherwise.
const A_TICK: Nanos = Nanos::from_millis(100);
/// So that a tenant that may not ask at all is not asked about all the time.
const SHORTEST_WAIT: Nanos = Nanos::from_millis(1);
