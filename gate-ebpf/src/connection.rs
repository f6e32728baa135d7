//! The look-up of the connection that a segment with data belongs to.
//!
//! A segment's source may be forged. Once half of a bucket is spent, only segments of connections that this machine has
//! may spend from it, so that forged ones never take the other half. The kernel's table of sockets says which those are.
//!
//! The table says nothing where connections are handed on to other machines or namespaces: at addresses that are not this
//! namespace's own, and behind rules that rewrite destinations. So nothing is dropped for a service before one
//! connection to it was found in the table.

use aya_ebpf::Global;
use aya_ebpf::bindings::{bpf_sock, xdp_md};
use aya_ebpf::cty::c_void;
use aya_ebpf::helpers::generated::{
    bpf_sk_release, bpf_skc_lookup_tcp, bpf_skc_to_tcp_request_sock, bpf_tcp_check_syncookie,
    bpf_xdp_load_bytes,
};
use gate_common::abi::{Control, LOCAL_ADDRESS, Service, bank_of};

use crate::context::Scratch;
use crate::fragments;
use crate::maps::{self, read_once, write_once};
use crate::parse::transport::TCP_HEADER;

/// The connection of a segment with data.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Connection {
    /// A connection, a handshake that it completes, or what cannot be known.
    Open = 0,
    /// A connection that is over: the kernel answers, and no application reads it.
    Closed = 1,
    /// None.
    Missing = 2,
}

/// Finds what a segment belongs to, if `half_spent`. If not, it only looks now and then for a first connection. Its steps are
/// called one after the other, since a program and what it calls share a stack of 512 bytes.
#[inline(always)]
pub(crate) fn find(
    ctx: *mut xdp_md,
    control: *mut Control,
    scratch: *mut Scratch,
    now_ns: u64,
    half_spent: bool,
) -> Connection {
    if !is_due(control, scratch, now_ns, half_spent) {
        return Connection::Open;
    }
    conclude(scratch, now_ns, half_spent, look_up(ctx, scratch))
}

/// True if the table of sockets is to be looked at, and can say something.
#[inline(never)]
fn is_due(control: *mut Control, scratch: *mut Scratch, now_ns: u64, half_spent: bool) -> bool {
    let Some(service) = maps::SERVICES.get_ptr_mut(read_once!((*scratch).service_slot)) else { return false };
    let seen = read_once!((*service).connection_seen_ns);
    if !half_spent && (seen != 0 || read_once!((*service).looked_up_ns) == now_ns) {
        return false;
    }
    // SAFETY: this CPU's own scratch.
    let frame = unsafe { &(*scratch).frame };
    let bank = bank_of(read_once!((*control).generation));
    if fragments::protected_address(control, bank, frame) != LOCAL_ADDRESS {
        return false;
    }
    write_once!((*service).looked_up_ns, now_ns);
    true
}

/// The conclusion from a look-up's result.
#[inline(never)]
fn conclude(scratch: *mut Scratch, now_ns: u64, half_spent: bool, found: Found) -> Connection {
    let Some(service) = maps::SERVICES.get_ptr_mut(read_once!((*scratch).service_slot)) else {
        return Connection::Open;
    };
    let seen = read_once!((*service).connection_seen_ns);
    match found {
        Found::Connection => {
            note_connection(service, now_ns);
            Connection::Open
        }
        Found::Handshake => Connection::Open,
        _ if seen == 0 || !half_spent => Connection::Open,
        Found::Closed => Connection::Closed,
        Found::Nothing => Connection::Missing,
    }
}

/// The arguments of the look-up's helpers, in scratch.
pub(crate) struct Lookup {
    header: TcpHeader,
    /// As `struct bpf_sock_tuple`: the addresses, then the ports.
    tuple: [u64; 5],
    /// As much of the IP header as is looked at: the version and the addresses.
    ip: [u64; 5],
}

#[inline(always)]
fn note_connection(service: *mut Service, now_ns: u64) {
    if read_once!((*service).connection_seen_ns) == 0 {
        write_once!((*service).connection_seen_ns, now_ns);
    }
}

/// The result of a look-up in the kernel's table of sockets.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
enum Found {
    Connection = 0,
    /// A handshake that the segment completes, or that may be one.
    Handshake = 1,
    Closed = 2,
    Nothing = 3,
}

#[inline(never)]
fn look_up(ctx: *mut xdp_md, scratch: *mut Scratch) -> Found {
    // SAFETY: this CPU's own scratch; the helpers read and write parts of it, and the socket is read until it is released.
    unsafe {
        let frame = &(*scratch).frame;
        let v6 = frame.v6;
        let from = frame.source;
        let to = frame.destination;
        let lookup = &raw mut (*scratch).lookup;
        let header = &raw mut (*lookup).header;
        let tuple = &raw mut (*lookup).tuple;
        let ip = &raw mut (*lookup).ip;
        let at = frame.transport_at as u32;
        if bpf_xdp_load_bytes(ctx, at, header.cast(), TCP_HEADER as u32) != 0 {
            return Found::Handshake;
        }
        let ports = u64::from((*header).ports);
        let socket = if v6 {
            *tuple = [from[0], from[1], to[0], to[1], ports];
            bpf_skc_lookup_tcp(ctx.cast(), tuple.cast(), 36, OWN_NAMESPACE, 0)
        } else {
            (*tuple)[0] = from[1] >> 32 | to[1] & !LOW_HALF;
            (*tuple)[1] = ports;
            bpf_skc_lookup_tcp(ctx.cast(), tuple.cast(), 12, OWN_NAMESPACE, 0)
        };
        if socket.is_null() {
            return Found::Nothing;
        }
        let found = match (&raw const (*socket).state).read_volatile() {
            LISTEN => {
                let valid = if v6 {
                    *ip = [0x60, from[0], from[1], to[0], to[1]];
                    check_cookie(socket, ip.cast(), 40, header)
                } else {
                    ((*ip)[0], (*ip)[1], (*ip)[2]) = (0x45, from[1] & !LOW_HALF, to[1] >> 32);
                    check_cookie(socket, ip.cast(), 20, header)
                };
                if valid { Found::Handshake } else { Found::Nothing }
            }
            NEW_SYN_RECV if completes_handshake(socket, u32::from_be((*header).acknowledgment)) => {
                Found::Handshake
            }
            NEW_SYN_RECV | CLOSE => Found::Nothing,
            TIME_WAIT => Found::Closed,
            _ => Found::Connection,
        };
        bpf_sk_release(socket.cast());
        found
    }
}

/// TCP's header, as far as it has no options.
#[repr(C)]
struct TcpHeader {
    ports: u32,
    sequence: u32,
    acknowledgment: u32,
    rest: [u32; 2],
}

const _: () = assert!(size_of::<TcpHeader>() == TCP_HEADER);

/// True if a segment for a listening socket acknowledges a SYN cookie.
///
/// # Safety
///
/// A socket that is held, and headers of these lengths.
#[inline(always)]
unsafe fn check_cookie(socket: *mut bpf_sock, ip: *mut c_void, ip_len: u32, header: *mut TcpHeader) -> bool {
    // SAFETY: the caller's.
    unsafe { bpf_tcp_check_syncookie(socket.cast(), ip, ip_len, header.cast(), TCP_HEADER as u32) == 0 }
}

/// True if a segment acknowledges the number that its handshake was answered with, which no forger sees; or if this
/// kernel does not say where the number lies.
///
/// # Safety
///
/// A socket that is held.
#[inline(always)]
unsafe fn completes_handshake(socket: *mut bpf_sock, acknowledgment: u32) -> bool {
    let offset = SNT_ISN.load();
    if offset == 0 {
        return true;
    }
    // SAFETY: the kernel's own request; the verifier knows its layout, and checks the offset.
    unsafe {
        let request = bpf_skc_to_tcp_request_sock(socket.cast()).cast::<u8>();
        if request.is_null() {
            return true;
        }
        let number = request.add(offset as usize).cast::<u32>().read_volatile();
        number.wrapping_add(1) == acknowledgment
    }
}

/// Where `struct tcp_request_sock` has the number that a handshake was answered with, in bytes. The daemon reads it from the
/// kernel's own description (BTF); zero if that is not there.
#[unsafe(no_mangle)]
static SNT_ISN: Global<u32> = Global::new(0);

/// The network namespace of the interface.
const OWN_NAMESPACE: u64 = u64::MAX;
const LOW_HALF: u64 = u32::MAX as u64;
// States of sockets (`linux/tcp.h`).
const TIME_WAIT: u32 = 6;
const CLOSE: u32 = 7;
const LISTEN: u32 = 10;
const NEW_SYN_RECV: u32 = 12;
