//! Whether the kernel counts the bytes in a socket's queue. Kernels before Linux 6.13 do not,
//! unless a distribution has added it; then a sender could fill the machine's memory.

crate::skeleton!("/queue.skel.rs");

use crate::Error;
use crate::option;
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapCore, MapFlags};
use skeleton::QueueSkelBuilder;
use std::io::{self, Write};
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};

/// Tests this with sockets of this process.
///
/// # Errors
/// The kernel cannot put bytes into a socket's queue.
pub(crate) fn is_counted() -> Result<bool, Error> {
    const BYTES: [u8; 4096] = [0; 4096];
    let mut place = MaybeUninit::uninit();
    let skeleton = QueueSkelBuilder::default().open(&mut place)?.load()?;
    let sockets = &skeleton.maps.sockets;
    skeleton.progs.forward.attach_sockmap(sockets.as_fd().as_raw_fd())?;
    let (receiver, _first) = connected()?;
    let (mut sender, _second) = connected()?;
    for (place, socket) in [(0_u32, &receiver), (1, &sender)] {
        let number = u64::try_from(socket.as_raw_fd()).unwrap_or(u64::MAX);
        sockets.update(&place.to_ne_bytes(), &number.to_ne_bytes(), MapFlags::ANY)?;
    }
    sender.write_all(&BYTES)?;
    let [received, ..]: [u32; 9] = option::get(&receiver, option::MEMORY)?;
    Ok(received as usize >= BYTES.len())
}

fn connected() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let client = TcpStream::connect(listener.local_addr()?)?;
    Ok((client, listener.accept()?.0))
}
