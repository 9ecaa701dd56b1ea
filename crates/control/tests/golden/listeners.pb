š†
E
shop/edge/tls2port 9000 cannot be opened: Address already in use
=
shop/edge/tls*the key does not belong to the certificate