//! Asks each HOST:PORT for /hello, as a program in Rust does that leaves it to the library to go
//! through a name's addresses. Prints the addresses, then the last line of the answer or the error.

use std::io::{Read, Result, Write};
use std::net::{TcpStream, ToSocketAddrs};

fn addresses(host: &str, port: u16) -> Result<String> {
    let found = (host, port).to_socket_addrs()?;
    Ok(found.map(|each| each.ip().to_string()).collect::<Vec<_>>().join(" "))
}

fn get(host: &str, port: u16) -> Result<String> {
    let mut stream = TcpStream::connect((host, port))?;
    write!(stream, "GET /hello HTTP/1.0\r\nHost: {host}\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text.lines().last().unwrap_or("nothing").to_string())
}

fn main() {
    for argument in std::env::args().skip(1) {
        let (host, port) = argument.rsplit_once(':').expect("HOST:PORT");
        let port = port.parse().expect("a port");
        for found in [addresses(host, port), get(host, port)] {
            match found {
                Ok(text) => println!("{text}"),
                Err(error) => println!("{error}"),
            }
        }
    }
}
