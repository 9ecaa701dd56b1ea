package main

import (
	"log"
	"net/http"
	"time"

	"github.com/lxzan/gws"
)

type echo struct{ gws.BuiltinEventHandler }

func (echo) OnPing(socket *gws.Conn, payload []byte) { _ = socket.WritePong(payload) }

func (echo) OnMessage(socket *gws.Conn, message *gws.Message) {
	defer message.Close()
	_ = socket.WriteMessage(message.Opcode, message.Bytes())
}

// serveWebSocket echoes messages, with the limits that the Autobahn cases need: 16 MiB messages, any permessage-deflate window.
func serveWebSocket([]string) error {
	listener, err := listen()
	if err != nil {
		return err
	}
	upgrader := gws.NewUpgrader(echo{}, &gws.ServerOption{
		CheckUtf8Enabled:    true,
		Recovery:            gws.Recovery,
		ReadMaxPayloadSize:  32 << 20,
		WriteMaxPayloadSize: 32 << 20,
		HandshakeTimeout:    10 * time.Second,
		// Everything is compressed, however short: kosoku 0.1.0 cannot read uncompressed text on a compressed connection.
		PermessageDeflate: gws.PermessageDeflate{
			Enabled: true, ServerContextTakeover: true, ClientContextTakeover: true, Threshold: 1,
		},
	})
	server := &http.Server{
		ReadHeaderTimeout: 10 * time.Second,
		Handler: http.HandlerFunc(func(response http.ResponseWriter, request *http.Request) {
			socket, err := upgrader.Upgrade(response, request)
			if err != nil {
				log.Printf("peer websocket: handshake: %v", err)
				return
			}
			go socket.ReadLoop()
		}),
	}
	return server.Serve(listener)
}
