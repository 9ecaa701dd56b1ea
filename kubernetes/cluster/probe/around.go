package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// experiment is a number of a protocol for experiments (RFC 3692).
const experiment = 253

// receive prints each datagram and each packet of the raw protocols that arrive, and answers
// datagrams. Without the right to open raw sockets, it receives datagrams only.
func receive(address string) error {
	packets, err := net.ListenPacket("udp", address)
	if err != nil {
		return err
	}
	go arrivals("datagram", packets)
	for _, protocol := range []int{experiment, unix.IPPROTO_SCTP} {
		raw, err := net.ListenPacket("ip4:"+strconv.Itoa(protocol), "0.0.0.0")
		if errors.Is(err, os.ErrPermission) {
			continue
		}
		if err != nil {
			return err
		}
		go arrivals("protocol "+strconv.Itoa(protocol), raw)
	}
	return nil
}

func arrivals(kind string, from net.PacketConn) {
	buffer := make([]byte, 65536)
	for {
		size, client, err := from.ReadFrom(buffer)
		if err != nil {
			return
		}
		fmt.Printf("%s of %d bytes from %s\n", kind, size, client)
		if kind == "datagram" {
			from.WriteTo([]byte("answer"), client)
		}
	}
}

// control sets an option of a socket before it connects.
func control(set func(int) error) func(string, string, syscall.RawConn) error {
	return func(_, _ string, raw syscall.RawConn) error {
		var failed error
		err := raw.Control(func(socket uintptr) { failed = set(int(socket)) })
		return errors.Join(err, failed)
	}
}

// transparent lets a socket have an address that is not its machine's. CAP_NET_RAW is enough for it.
var transparent = control(func(socket int) error {
	return unix.SetsockoptInt(socket, unix.SOL_IP, unix.IP_TRANSPARENT, 1)
})

func marked(value string) func(string, string, syscall.RawConn) error {
	return control(func(socket int) error {
		mark, err := strconv.ParseInt(value, 0, 64)
		if err != nil {
			return err
		}
		return unix.SetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_MARK, int(mark))
	})
}

// scan connects to all ports of an address.
func scan(address string) error {
	ports := make(chan int)
	var wait sync.WaitGroup
	var lock sync.Mutex
	for range 64 {
		wait.Go(func() {
			for port := range ports {
				line, err := request(net.JoinHostPort(address, strconv.Itoa(port)))
				if err != nil {
					continue
				}
				lock.Lock()
				fmt.Println(port, line)
				lock.Unlock()
			}
		})
	}
	for port := 1; port < 65536; port++ {
		ports <- port
	}
	close(ports)
	wait.Wait()
	return nil
}

// request connects, sends a request, and returns the first line of the answer. The error says that
// the port is closed.
func request(address string) (string, error) {
	connection, err := net.DialTimeout("tcp", address, 2*time.Second)
	if err != nil {
		return "", err
	}
	defer connection.Close()
	connection.SetDeadline(time.Now().Add(2 * time.Second))
	io.WriteString(connection, "GET / HTTP/1.1\r\nhost: probe\r\nconnection: close\r\n\r\n")
	answer, err := io.ReadAll(io.LimitReader(connection, 200))
	line, _, _ := strings.Cut(string(answer), "\r\n")
	if line == "" {
		line = fmt.Sprintf("no answer (%v)", err)
	}
	return strconv.Quote(line), nil
}

// enough connections of a rush.
const enough = 50

// rush prints how many connections had each answer. It gives up after two minutes.
func rush(address string) error {
	var wait sync.WaitGroup
	var made atomic.Int64
	var lock sync.Mutex
	counts := map[string]int{}
	for end := time.Now().Add(2 * time.Minute); made.Load() < enough && time.Now().Before(end); {
		wait.Go(func() {
			line, err := request(address)
			if err != nil {
				return
			}
			made.Add(1)
			lock.Lock()
			defer lock.Unlock()
			counts[line]++
		})
		time.Sleep(10 * time.Millisecond)
	}
	wait.Wait()
	fmt.Println(counts)
	return nil
}

// send sends a packet without the help of TCP.
func send(kind, address string) error {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	switch kind {
	case "udp":
		return exchange("udp", address, []byte("question"))
	case "fragments":
		return exchange("udp", address, make([]byte, 20000))
	case "raw":
		return transmit("ip4:"+strconv.Itoa(experiment), host, []byte("question"))
	case "sctp":
		// The first part of an association: INIT, from port 1 to port 8080.
		return transmit("ip4:"+strconv.Itoa(unix.IPPROTO_SCTP), host, []byte{
			0, 1, 0x1f, 0x90, 0, 0, 0, 0, 0, 0, 0, 0,
			1, 0, 0, 20, 0, 0, 0, 1, 0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 1,
		})
	case "icmp":
		return exchange("ip4:1", host, []byte{8, 0, 0xf7, 0xff, 0, 0, 0, 0})
	case "packet":
		return packet(host)
	case "vsock":
		_, err := unix.Socket(unix.AF_VSOCK, unix.SOCK_STREAM, 0)
		return err
	}
	return errors.New(usage)
}

func transmit(network, address string, question []byte) error {
	connection, err := net.Dial(network, address)
	if err != nil {
		return err
	}
	defer connection.Close()
	_, err = connection.Write(question)
	return err
}

// exchange waits for an answer, too.
func exchange(network, address string, question []byte) error {
	connection, err := net.Dial(network, address)
	if err != nil {
		return err
	}
	defer connection.Close()
	if _, err := connection.Write(question); err != nil {
		return err
	}
	connection.SetDeadline(time.Now().Add(2 * time.Second))
	size, err := connection.Read(make([]byte, 65536))
	if err == nil {
		fmt.Println("answer of", size, "bytes")
	}
	return err
}

// packet sends a packet past the kernel's own network: in a frame to all machines of the link.
func packet(address string) error {
	order := func(number uint16) uint16 { return number>>8 | number<<8 }
	socket, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM, int(order(unix.ETH_P_ALL)))
	if err != nil {
		return err
	}
	defer unix.Close(socket)
	link, err := net.InterfaceByName("eth0")
	if err != nil {
		return err
	}
	own, err := link.Addrs()
	if err != nil {
		return err
	}
	packet := []byte{0x45, 0, 0, 28, 0, 0, 0, 0, 64, experiment, 0, 0}
	packet = append(packet, own[0].(*net.IPNet).IP.To4()...)
	packet = append(packet, net.ParseIP(address).To4()...)
	sum := uint32(0)
	for i := 0; i < len(packet); i += 2 {
		sum += uint32(packet[i])<<8 | uint32(packet[i+1])
	}
	sum = ^(sum>>16 + sum&0xffff)
	packet[10], packet[11] = byte(sum>>8), byte(sum)
	return unix.Sendto(socket, append(packet, "question"...), 0, &unix.SockaddrLinklayer{
		Protocol: order(unix.ETH_P_IP), Ifindex: link.Index, Halen: 6, Addr: [8]byte{255, 255, 255, 255, 255, 255},
	})
}
