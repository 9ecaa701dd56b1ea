2M
shop/report0123456789abcdef (08í÷Ì†¦7@ÕÿÌ†¦7HRit was killedX½‡Í†¦7