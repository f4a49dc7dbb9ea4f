//! Lays the paths between the ports' queues.

use xskit::{Receiver, Sender, Socket, SocketConfig};

use crate::{
    cli::Options,
    common::{Failure, Opened, Queue},
    path::{Path, Style},
};

/// Lays a path from every queue to one of the other port, or back to itself where there is one port.
pub(crate) fn connect(
    mut sockets: Vec<Vec<Socket>>,
    opened: &mut Opened,
    options: &Options,
) -> Result<Vec<Path>, Failure> {
    let Opened { queues, umem, .. } = opened;
    let ports = sockets.len();
    let style = Style { reflect: ports == 1, spin: options.running.spin };
    // Where a port's queues begin among all.
    let mut first = vec![0];
    for sockets in &sockets {
        first.push(first[first.len() - 1] + sockets.len());
    }
    let mut extra = Vec::new();
    for to in 0..ports {
        let arriving = sockets[(to + 1) % ports].len();
        let queues = &mut queues[first[to]..first[to + 1]];
        extra.push(share(&mut sockets[to], queues, arriving, &options.socket())?);
    }
    let (receivers, mut senders): (Vec<Vec<Receiver>>, Vec<Vec<Sender>>) = sockets
        .into_iter()
        .map(|sockets| sockets.into_iter().map(Socket::into_split).unzip())
        .unzip();
    for (senders, extra) in senders.iter_mut().zip(extra) {
        senders.extend(extra);
    }
    let mut paths = Vec::new();
    for (from, receivers) in receivers.into_iter().enumerate() {
        let to = (from + 1) % ports;
        let outgoing = first[to + 1] - first[to];
        // Where fewer queues arrive than there are, some do not send.
        for (index, (receiver, sender)) in
            receivers.into_iter().zip(senders[to].drain(..)).enumerate()
        {
            let bytes = queues[first[from] + index].bytes_in.clone();
            queues[first[to] + index % outgoing].bytes_out.push(bytes.clone());
            let batch = umem.batch(usize::try_from(options.running.batch)?);
            paths.push(Path { receiver, sender, batch, bytes, style });
        }
    }
    Ok(paths)
}

/// Where more queues arrive than there are here, some of them need sockets of their own to send with:
/// a sending half belongs to one thread.
fn share(
    sockets: &mut [Socket],
    queues: &mut [Queue],
    arriving: usize,
    config: &SocketConfig,
) -> Result<Vec<Sender>, Failure> {
    let mut senders = Vec::new();
    for index in sockets.len()..arriving {
        let index = index % sockets.len();
        let socket = sockets[index].share_queue(&config.clone().send_only())?;
        queues[index].senders.push(socket.statistics_reader());
        senders.push(socket.into_split().1);
    }
    Ok(senders)
}
